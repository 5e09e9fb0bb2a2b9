"""Golden archives from the command line: recorded, given, and refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_cplife.evidence.golden import CHECKPOINT, MANIFEST, keep_archive
from pytest_cplife.expected import Expectations
from pytest_cplife.options import Options, resolve
from pytest_cplife.report.results import Plan, Results
from pytest_cplife.rules.model import Outcome, Verdict
from pytest_cplife.running import Running
from pytest_cplife.scenarios.golden import CannotRecord
from tests.evidence.archiving import manifest

REFERENCE = "pytest_cplife.reference_impl:Adapter"


def resolved(pytester: pytest.Pytester, *arguments: str) -> Options:
    options = resolve(pytester.parseconfig("--cplife-adapter=m:A", *arguments))
    assert options is not None
    return options


@pytest.fixture
def archive(pytester: pytest.Pytester) -> Path:
    pytester.makefile("", saved="all of it")
    return keep_archive(pytester.path / "golden", pytester.path / "saved", manifest())


def test_a_folder_of_archives(pytester: pytest.Pytester, archive: Path) -> None:
    options = resolved(pytester, "--cplife-golden=golden", "--cplife-record-golden=other")
    folder = pytester.path / "golden"
    assert (options.golden, options.record_golden) == (folder, pytester.path / "other")
    assert options.settings(folder).golden == folder
    assert f"--cplife-golden={folder}" in options.command("COMPAT-07", "dp1")


def test_the_first_archive_of_a_folder_is_yet_to_be_recorded(pytester: pytest.Pytester) -> None:
    """The ini file may name the folder before there is anything in it."""
    pytester.makeini("[pytest]\ncplife_golden = golden\n")
    with pytest.raises(pytest.UsageError, match="--cplife-record-golden=DIR makes one"):
        resolved(pytester)
    for made in (False, True):
        if made:
            pytester.mkdir("golden")
        options = resolved(pytester, "--cplife-record-golden=golden")
        assert (options.golden, options.record_golden) == (None, pytester.path / "golden")


@pytest.mark.parametrize("flag", ["--cplife-golden", "--cplife-record-golden"])
@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "manifest.json cannot be read"), ('{"version": 2}', "written by a newer pytest-cplife")],
)
def test_an_archive_that_cannot_be_used(
    pytester: pytest.Pytester, archive: Path, flag: str, text: str, message: str
) -> None:
    (archive / MANIFEST).write_text(text)
    with pytest.raises(pytest.UsageError) as caught:
        resolved(pytester, f"{flag}=golden")
    assert str(caught.value).startswith(f"{flag}=golden: {archive.name}/")
    assert message in str(caught.value)


def test_a_file_is_no_folder(pytester: pytest.Pytester) -> None:
    pytester.makefile("", saved="")
    for flag in ("--cplife-golden", "--cplife-record-golden"):
        with pytest.raises(pytest.UsageError, match=f"^{flag}=saved: accepted is a folder"):
            resolved(pytester, f"{flag}=saved")


def test_what_failed_is_not_kept(pytester: pytest.Pytester) -> None:
    running = Running(resolved(pytester), Expectations())
    verdict = Verdict("SAVE-05", "dp1", Outcome.FAILED)
    results = Results(Plan(keys=[("SAVE-05", "dp1")], meshes=["dp1"]), [verdict])
    with pytest.raises(CannotRecord, match=r"^SAVE-05 failed"):
        running.record_golden(pytester.path / "golden", results)


def test_recorded_today_and_loaded_tomorrow(pytester: pytest.Pytester) -> None:
    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess(f"--cplife-adapter={REFERENCE}", *arguments)

    one_rank = "--cplife-mesh=dp=1"
    record = ("--cplife-record-golden=golden", one_rank, "-k", "ADAPTER")
    run(*record).stdout.fnmatch_lines(["golden archive: */golden/Adapter-*, recorded"])
    run(*record).stdout.fnmatch_lines(["golden archive: * says the same; none was recorded"])
    (archive,) = (pytester.path / "golden").iterdir()
    known = json.loads((archive / MANIFEST).read_text())
    assert (known["adapter"], known["mesh"], known["counters"]["global_step"]) == (
        REFERENCE,
        "dp=1",
        3,
    )
    assert str(pytester.path) not in json.dumps(known)

    load = ("--cplife-golden=golden", "--cplife-mesh=cp=2", "-k", "COMPAT-07")
    assert run(*load).parseoutcomes()["passed"] == 1
    whole = (archive / CHECKPOINT).read_bytes()
    (archive / CHECKPOINT).write_bytes(whole[:-1])
    result = run(*load)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*COMPAT-07 golden archives still load on cp2*"])


def test_a_session_that_cannot_record_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        mymod="""
        from pytest_cplife import LifecycleAdapter

        class Adapter(LifecycleAdapter):
            def build_serial_model(self): ...
            def start(self, ctx): raise OSError("no such file")
        """
    )
    result = pytester.runpytest_subprocess(
        "--cplife-adapter=mymod:Adapter",
        "--cplife-record-golden=golden",
        "--cplife-mesh=dp=1",
        "-k",
        "ADAPTER",
    )
    assert result.parseoutcomes()["passed"] == 1
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["problem: no golden archive was recorded: 'save' did not *"])
    assert not (pytester.path / "golden").exists()
