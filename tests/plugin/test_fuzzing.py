"""What fuzzing adds to the command line: profiles, and the command that tries an example again."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_cplife.expected import Expectations
from pytest_cplife.options import Options, resolve
from pytest_cplife.rules.model import Outcome, Rule, Verdict, Violation
from pytest_cplife.running import Running

RULE = Rule("FUZZ-01", "a rule", "must", "It is.", "So.", "This.", (), check=lambda case: ())


def resolved(pytester: pytest.Pytester, *arguments: str) -> Options:
    options = resolve(pytester.parseconfig("--cplife-adapter=m:A", *arguments))
    assert options is not None
    return options


def last_line(options: Options, replay: str) -> str:
    failed = Verdict(
        "FUZZ-01", "", Outcome.FAILED, violations=(Violation("w", "a", "b"),), replay=replay
    )
    return Running(options, Expectations()).message(RULE, failed).splitlines()[-1]


def test_failure_ends_with_the_command_that_tries_its_example_again(
    pytester: pytest.Pytester,
) -> None:
    pytester.chdir()
    options = resolved(pytester, "--cplife-mesh=dp=2", "--cplife-launcher=threads")
    told = "again   pytest --cplife-adapter=m:A --cplife-launcher=threads --cplife-replay="
    # The file says which meshes; it is named from the current folder where it lies below.
    assert last_line(options, str(Path.cwd() / "kept" / "x.json")) == f"{told}kept/x.json"
    assert last_line(options, "/elsewhere/x y.json") == (
        "again   pytest --cplife-adapter=m:A --cplife-launcher=threads"
        " '--cplife-replay=/elsewhere/x y.json'"
    )


def test_failure_without_an_example_is_searched_for_again(pytester: pytest.Pytester) -> None:
    options = resolved(pytester, "--cplife-profile=explore", "--cplife-fuzz-seconds=7")
    assert last_line(options, "") == (
        "again   pytest --cplife-adapter=m:A --cplife-profile=explore --cplife-fuzz-seconds=7"
        " -k FUZZ-01"
    )


def test_examples_are_kept_in_pytests_cache(pytester: pytest.Pytester) -> None:
    """Where there is none they are kept all the same: a command that names a file finds it."""
    from pytest_cplife.hooks import _kept_folder

    config = pytester.parseconfigure()
    assert _kept_folder(config) == pytester.path / ".pytest_cache" / "d" / "cplife"
    assert _kept_folder(pytester.parseconfigure("-p", "no:cacheprovider")).name == "cplife-kept"


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]])
def test_failure_is_kept_and_replayed(pytester: pytest.Pytester, arguments: list[str]) -> None:
    root = Path(__file__).parents[2]
    pytester.makeini(f"[pytest]\npythonpath = {root}\n")
    adapter = "--cplife-adapter=pytest_cplife.selftest.faults.geometry:OneElement"
    # The same examples however busy the machine is: what "quick" finds depends on its seconds.
    chosen = ["--cplife-mesh=dp=2", "-k", "FUZZ", "--cplife-profile=gate", "--cplife-report=r.json"]
    result = pytester.runpytest_subprocess(adapter, *chosen, *arguments)
    # There is no trainer: that is not for FUZZ-03 and FUZZ-04 to tell.
    result.assert_outcomes(failed=1, passed=1, skipped=2)
    result.stdout.fnmatch_lines(["blocked, 2: blocked by PLACE-01 [[]FUZZ-03 FUZZ-04]"])
    # Under CI pytest's summary at the end repeats the message.
    [again] = {line for line in result.outlines if line.startswith("again ")}
    file = again.partition("--cplife-replay=")[2]
    assert file in (pytester.path / "r.json").read_text()
    result = pytester.runpytest_subprocess(adapter, f"--cplife-replay={file}", *arguments)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["to_plain: shape, it on ranks 0, 1:"])
