"""Users' own tests and options on a GPU, each in a pytest of its own."""

from __future__ import annotations

import pytest

BODY = """
    import pytest
    import torch
    import torch.distributed as dist

    HAS_GPU = torch.cuda.is_available()  # as many a test module asks when it is imported

    @pytest.mark.skipif(not HAS_GPU, reason="no GPU")
    @pytest.mark.cplife(mesh="cp=2")
    def test_two(cplife_mesh):
        assert cplife_mesh.device_type == "cuda"
        tensor = torch.ones(4, device="cuda")
        dist.all_reduce(tensor, group=cplife_mesh.get_group())
        assert tensor.tolist() == [2.0] * 4
        drawn = torch.rand(3, device="cuda").tolist()
        both = [None, None]
        dist.all_gather_object(both, drawn)
        assert both[0] == both[1]

    @pytest.mark.cplife(mesh="cp=64")
    def test_too_large(cplife_mesh): ...
"""
QUIET = ("-p", "no:hypothesispytest", "-rs", "--cplife-device=cuda")


@pytest.mark.parametrize("launcher", ["processes", "threads"])
def test_marked_tests_on_a_shared_gpu(pytester: pytest.Pytester, launcher: str) -> None:
    pytester.makepyfile(BODY)
    arguments = (f"--cplife-launcher={launcher}", "--cplife-backend=gloo", "-k", "two")
    pytester.runpytest_subprocess(*QUIET, *arguments).assert_outcomes(passed=1, deselected=1)


def test_a_mesh_larger_than_the_machine_is_skipped_with_the_reason(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(BODY)
    result = pytester.runpytest_subprocess(*QUIET, "-k", "large")
    result.assert_outcomes(skipped=1, deselected=1)
    result.stdout.fnmatch_lines(["*needs 64 ranks, NCCL takes a GPU for each, of * GPU* here*"])
