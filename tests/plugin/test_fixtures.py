"""Users' own tests on ranks: the marker, the fixtures, and what is reported of them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
SAMPLES = Path(__file__).parent / "marked_samples.py"


@dataclass(frozen=True)
class Ran:
    """The output of one run of pytest, and each test's outcome."""

    text: str

    @property
    def outcomes(self) -> dict[str, str]:
        found = re.findall(r"^([A-Z]+) test_\w+\.py::(\S+)", self.text, re.MULTILINE)
        return {name: outcome for outcome, name in found}

    def section(self, test: str) -> str:
        """What is told of one failed test."""
        match = re.search(
            rf"^_+ {re.escape(test)} _+\n(.*?)(?=^_{{3,}} |^=+ )", self.text, re.M | re.S
        )
        assert match, f"no report on {test} in\n{self.text}"
        return match[1]


def run(folder: Path, *arguments: str) -> Ran:
    # Neither plugin nor cache is needed, and both cost time.
    quiet = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--strict-markers", "-rA")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Ran(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("marked")
    shutil.copy(SAMPLES, made / "test_marked.py")
    return made


@pytest.fixture(scope="module")
def processes(folder: Path) -> Ran:
    return run(folder, "-k", "not too_large")


@pytest.fixture(scope="module")
def threads(folder: Path) -> Ran:
    return run(folder, "--cplife-launcher=threads", "--cplife-max-world-size=2")


def test_every_outcome_is_right(processes: Ran) -> None:
    assert processes.outcomes == {
        "test_body[8]": "PASSED",
        "test_body[16]": "PASSED",
        "TestMethods::test_each_rank_has_its_instance": "PASSED",
        "test_fails": "FAILED",
        "test_after_a_failure": "PASSED",
        "test_fails_everywhere": "FAILED",
        "test_some_skip": "FAILED",
        "test_some_skip_and_others_wait": "FAILED",
        "test_one_returns_early": "FAILED",
        "test_times_out": "FAILED",
        "test_all_xfail": "XFAIL",
        "test_some_xfail": "FAILED",
        "test_expected_error": "XFAIL",
        "test_patches": "PASSED",
        "test_sees_no_patch": "PASSED",
        "test_not_picklable": "FAILED",
        "test_bad_mesh": "ERROR",
        "test_bad_marker": "ERROR",
        "test_not_marked": "ERROR",
        "test_world": "PASSED",
        "test_world_fails": "FAILED",
    }
    # Skips are listed by place, which is that of the skip in the rank.
    assert re.search(
        r"^SKIPPED \[1\] test_marked.py:\d+: could not import 'no_", processes.text, re.M
    )


def test_a_failure_names_the_rank_and_shows_its_frames(processes: Ran) -> None:
    told = processes.section("test_fails")
    assert told.startswith("rank 1 of 2 on mesh cp=2\n")
    assert ">           assert [*sizes, dist.get_rank()] == [2, 3, 4]" in told
    assert "E           assert [2, 3, 1] == [2, 3, 4]" in told
    assert "At index 2 diff: 1 != 4" in told
    assert "sizes = [2, 3]" in told
    assert "rank 0 hung: Stopped: waits in gloo:barrier" in told
    assert "spmd/" not in told
    summary = re.search(r"^FAILED test_marked.py::test_fails - (.*)", processes.text, re.M)
    assert summary and summary[1].startswith("rank 1: assert [2, 3, 1] ==")


def test_what_ranks_print_and_log_is_kept_apart(processes: Ran) -> None:
    told = processes.section("test_fails")
    for rank in (0, 1):
        assert re.search(rf"-+ Captured stdout rank {rank} -+\nprinted by {rank}\n", told)
        assert re.search(
            rf"-+ Captured log rank {rank} -+\nWARNING  mine:.*logged by {rank}\n", told
        )


def test_equal_failures_are_folded(processes: Ran) -> None:
    told = processes.section("test_fails_everywhere")
    assert told.count("on purpose") <= 3
    assert re.search(r"rank [01] failed in the same way", told)


def test_ranks_have_to_skip_together(processes: Ran) -> None:
    assert "rank 0 passed; rank 1 skipped: odd" in processes.section("test_some_skip")
    told = processes.section("test_some_skip_and_others_wait")
    assert "rank 1 skipped: odd, but rank 0 did not" in told
    assert "rank 0 hung: Deadlock: waits in gloo:barrier" in told
    assert "rank 0 xfailed: some day; rank 1 passed" in processes.section("test_some_xfail")


def test_a_rank_without_an_exception_is_told_of_in_words(processes: Ran) -> None:
    told = processes.section("test_one_returns_early")
    assert told.startswith(
        "rank 1 of 2 on mesh cp=2\nE   rank 1 hung: Deadlock: rank 1 has returned"
    )
    told = processes.section("test_times_out")
    assert "rank 1 hung: Timeout: " in told and "deadline of 1 s" in told
    assert "in test_times_out" in told and "rank 0 did not fail" in told
    assert "spmd" not in told
    summary = r"^FAILED test_marked.py::test_times_out - rank 1 hung: Timeout: "
    assert re.search(summary, processes.text, re.MULTILINE)


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("test_not_picklable", "fixture 'request', a TopRequest, cannot be sent to the ranks: "),
        ("ERROR at setup of test_bad_mesh", "mesh 'cp': cannot read 'cp'; accepted are"),
        ("ERROR at setup of test_bad_marker", "unexpected keyword argument 'mash'; it is written"),
        ("ERROR at setup of test_not_marked", "cplife_mesh needs @pytest.mark.cplife(mesh="),
    ],
)
def test_mistakes_are_explained(processes: Ran, test: str, message: str) -> None:
    told = processes.section(test)
    assert message in told
    assert "Traceback" not in told and "During handling" not in told


def test_a_world_shows_the_function_that_failed(processes: Ran) -> None:
    told = processes.section("test_world_fails")
    assert "WorldFailure: rank 1 raised: AssertionError: assert (1 + 3) < 4" in told
    assert "in add\n" in told
    assert "spmd/" not in told and "processes.py" not in told


def test_threads_have_the_same_outcomes(processes: Ran, threads: Ran) -> None:
    differing = {"test_not_picklable": "PASSED"}
    # Meshes of four are beyond the limit given, and skips are listed by place.
    beyond = ("test_body[8]", "test_body[16]")
    expected = {k: v for k, v in processes.outcomes.items() if k not in beyond}
    assert threads.outcomes == expected | differing
    assert "needs 4 ranks, --cplife-max-world-size is 2" in threads.text
    assert "At index 2 diff: 1 != 4" in threads.section("test_fails")
    told = threads.section("test_one_returns_early")
    assert "rank 0 waits in barrier" in told and "_hand_over" not in told


def test_workers_of_xdist_report_the_same(folder: Path, processes: Ran) -> None:
    tests = "fails or skip or body or xfail"
    result = run(folder, "-n2", "-k", f"({tests}) and not world")
    expected = {k: v for k, v in processes.outcomes.items() if k in result.outcomes}
    assert result.outcomes == expected and len(expected) == 9
    told = result.section("test_fails")
    assert "rank 1 of 2 on mesh cp=2\n" in told and "At index 2 diff: 1 != 4" in told
    assert re.search(r"-+ Captured stdout rank 1 -+\nprinted by 1\n", told)


def test_modules_imported_after_the_ranks_were_made(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(late="def wrong(rank):\n    x = 5\n    assert x == 6")
    pytester.makepyfile(
        """
        import pytest

        def one(rank):
            return 1

        def test_late(cplife_world):
            assert cplife_world(2).run(one) == [1, 1]
            pytest.register_assert_rewrite("late")
            import late

            # A rank forked before would find the module, but not with pytest's assertions.
            with pytest.raises(Exception, match="assert 5 == 6"):
                cplife_world(2).run(late.wrong)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_other_tests_do_not_load_the_hooks(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_dormant(pytestconfig):
            assert not pytestconfig.pluginmanager.hasplugin("cplife-marker")
        """
    )
    result = pytester.runpytest_subprocess("--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.cplife(mesh, timeout=None): *"])
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_example_of_the_readme_runs(pytester: pytest.Pytester) -> None:
    section = README.read_text().partition("## Your own tests on ranks\n")[2].partition("\n## ")[0]
    code = "\n".join(
        line[4:] for line in section.splitlines() if not line.strip() or line[:4] == "    "
    )
    pytester.makepyfile(code)
    pytester.runpytest_subprocess("-p", "no:hypothesispytest").assert_outcomes(passed=3)
