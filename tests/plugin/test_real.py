"""Without fakes: the plugin, the session and the reference trainer together."""

from __future__ import annotations

import json

import pytest

REFERENCE = "pytest_cplife.reference_impl:Adapter"


def judge(pytester: pytest.Pytester, adapter: str, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(
        f"--cplife-adapter={adapter}", "--cplife-mesh=dp=1", *arguments
    )


def test_the_reference_passes_what_it_is_asked(pytester: pytest.Pytester) -> None:
    result = judge(pytester, REFERENCE, "-k", "ADAPTER or PLACE-01", "--cplife-report=r.json")
    assert result.ret == pytest.ExitCode.OK
    report = json.loads((pytester.path / "r.json").read_text())
    assert report["denominator"]["passed"] == 3
    assert report["denominator"]["total"] == len(report["results"]) > 30
    assert report["environment"]["torch"].startswith("2.")
    assert report["adapter"]["class"].startswith("pytest_cplife.reference_impl.")


def test_an_adapter_that_cannot_be_used_fails_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        mymod="""
        from pytest_cplife import LifecycleAdapter

        class HalfAdapter(LifecycleAdapter):
            def start(self, ctx): ...
        """
    )
    result = judge(pytester, "mymod:HalfAdapter")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"failed", "skipped"}
    assert outcomes["failed"] == 1
    result.stdout.fnmatch_lines(
        [
            "*HalfAdapter lacks the method `build_serial_model(self)*",
            "blocked, *: blocked by ADAPTER-01 *",
        ]
    )
