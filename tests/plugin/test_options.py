"""Options and their ini twins: what they do, and what is said of values that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.options import DEFAULTS, OPTIONS, Options, resolve
from tests.plugin.conftest import TOTAL, Run


def resolved(pytester: pytest.Pytester, *arguments: str) -> Options | None:
    """The options of a pytest that was called with `arguments`, without running it."""
    return resolve(pytester.parseconfig(*arguments))


def test_the_defaults_are_those_of_the_settings(pytester: pytest.Pytester) -> None:
    options = resolved(pytester, "--cplife-adapter=m:A")
    assert options is not None
    settings = options.settings(DEFAULTS.workdir)
    assert settings == type(DEFAULTS)(adapter="m:A", workdir=DEFAULTS.workdir)
    assert not (options.suite or options.certify or options.reports or options.expected)


def test_every_option_reaches_the_settings(pytester: pytest.Pytester) -> None:
    options = resolved(
        pytester,
        "--cplife-adapter=sub/file.py:A",
        "--cplife-mesh=dp=2,cp=2",
        "--cplife-mesh=dp1",
        "--cplife-max-world-size=4",
        "--cplife-device=cuda",
        "--cplife-backend=nccl",
        "--cplife-launcher=processes",
        "--cplife-steps=5,1",
        "--cplife-timeout=7.5",
        "--cplife-strict",
        "--cplife-require=predict,ema_weights",
        "--cplife-require=predict",
        "--cplife-profile=explore",
        "--cplife-fuzz-seconds=9",
    )
    assert options is not None
    settings = options.settings(DEFAULTS.workdir, pytester.path)
    assert settings.adapter == f"{pytester.path}/sub/file.py:A"
    assert settings.meshes == (MeshSpec.parse("dp=2,cp=2"), MeshSpec.parse("dp=1"))
    assert (settings.max_world_size, settings.steps, settings.timeout) == (4, (5, 1), 7.5)
    assert (settings.device, settings.backend, settings.launcher) == ("cuda", "nccl", "processes")
    assert settings.strict
    assert settings.require == ("predict", "ema_weights")
    assert (settings.profile, settings.fuzz_seconds) == ("explore", 9.0)
    assert settings.kept == pytester.path


def test_the_ini_file_has_a_twin_for_each(pytester: pytest.Pytester) -> None:
    sub = pytester.mkdir("sub")
    pytester.makeini(
        """
        [pytest]
        cplife_adapter = file.py:A
        cplife_mesh =
            dp=2
            cp=2
        cplife_max_world_size = 2
        cplife_device = cpu
        cplife_backend = gloo
        cplife_launcher = processes
        cplife_steps = 1, 2
        cplife_timeout = 3
        cplife_level = must
        cplife_strict = true
        cplife_require = predict
        cplife_expected = known.toml
        cplife_golden = archives
        cplife_record_golden = archives
        cplife_profile = explore
        cplife_fuzz_seconds = 12
        cplife_report =
            a.json
            b.md
        """
    )
    pytester.chdir()
    config = pytester.parseconfig(str(sub))
    options = resolve(config)
    assert options is not None
    assert options.reference == f"{pytester.path}/file.py:A"
    assert [str(mesh) for mesh in options.meshes] == ["dp2", "cp2"]
    assert (options.max_world_size, options.steps, options.timeout) == (2, (1, 2), 3.0)
    assert options.strict and options.require == ("predict",) and options.backend == "gloo"
    assert options.level == "must"
    assert options.expected == pytester.path / "known.toml"
    assert (options.golden, options.record_golden) == (None, pytester.path / "archives")
    assert options.reports == (pytester.path / "a.json", pytester.path / "b.md")
    assert (options.profile, options.fuzz_seconds) == ("explore", 12.0)
    twins = {option.dest for option in OPTIONS if option.has_ini} - {"cplife_certify"}
    assert twins <= set((pytester.path / "tox.ini").read_text().split())


def test_the_command_line_wins(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ncplife_adapter = m:A\ncplife_steps = 1,1\n")
    options = resolved(pytester, "--cplife-steps=2,2", "--cplife-adapter=n:B")
    assert options is not None
    assert (options.steps, options.adapter, options.given_by_option) == ((2, 2), "n:B", True)
    assert resolved(pytester, "--cplife-adapter=") is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--cplife-mesh=dp",
            "--cplife-mesh: mesh 'dp': cannot read 'dp'; accepted are 'name=size'",
        ),
        ("--cplife-mesh=dp=0", "sizes are at least 1"),
        ("--cplife-max-world-size=0", "=0: accepted is a whole number from 1"),
        ("--cplife-max-world-size=two", "=two: accepted is a whole number from 1"),
        ("--cplife-device=tpu", "--cplife-device=tpu: accepted is cpu or cuda"),
        ("--cplife-backend=mpi", "--cplife-backend=mpi: accepted is auto or gloo or nccl"),
        ("--cplife-backend=nccl", "needs --cplife-device=cuda"),
        ("--cplife-launcher=slurm", "--cplife-launcher=slurm: accepted is processes or threads"),
        ("--cplife-steps=3", "=3: accepted is two whole numbers from 1"),
        ("--cplife-steps=0,2", "=0,2: accepted is two whole numbers from 1"),
        ("--cplife-timeout=0", "=0: accepted is a number of seconds above 0"),
        ("--cplife-timeout=nan", "=nan: accepted is a number of seconds above 0"),
        ("--cplife-timeout=soon", "=soon: accepted is a number of seconds above 0"),
        ("--cplife-profile=deep", "=deep: accepted is quick or gate or explore or off"),
        ("--cplife-profile=explore --cplife-fuzz-seconds=-1", "a number of seconds above 0"),
        (
            "--cplife-fuzz-seconds=60",
            "--cplife-profile=quick: accepted is explore, where --cplife-fuzz-seconds is given",
        ),
        ("--cplife-report=r.xml", "=r.xml: accepted is a path that ends in .json or .md"),
        ("--cplife-certify --cplife-expected=x.toml", "accepts no expected failures"),
    ],
)
def test_a_bad_value(pytester: pytest.Pytester, arguments: str, message: str) -> None:
    with pytest.raises(pytest.UsageError) as caught:
        resolved(pytester, "--cplife-adapter=m:A", *arguments.split())
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "option", [o for o in OPTIONS if o.name == "" or o.kind in ("list", "flag")]
)
def test_an_option_that_needs_an_adapter_says_so(pytester: pytest.Pytester, option: object) -> None:
    flag = option.flag  # type: ignore[attr-defined]
    value = [flag] if option.kind in ("flag", "action") else [f"{flag}=x"]  # type: ignore[attr-defined]
    with pytest.raises(pytest.UsageError, match=rf"^{flag} needs an adapter"):
        resolved(pytester, *value)


def test_a_usage_error_ends_the_run_with_one_line(run: Run) -> None:
    result = run("--cplife-steps=x")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --cplife-steps=x: accepted is *"])
    assert len([line for line in result.errlines if line]) == 1


def test_an_unknown_capability_is_refused_once(run: Run) -> None:
    result = run("--cplife-require=predicts")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len([line for line in result.errlines if "accepted are" in line]) == 1
    assert "schedulers" in str(result.stderr)


@pytest.mark.parametrize("extra", [["-k", "GO"], ["-m", "slow"], ["--deselect", "x"], ["--lf"]])
def test_certifying_refuses_to_select(run: Run, extra: list[str]) -> None:
    result = run("--cplife-certify", *extra)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --cplife-certify runs every rule; leave out {extra[0]}"])


def test_certifying_refuses_fewer_meshes(run: Run) -> None:
    result = run("--cplife-certify", "--cplife-mesh=dp=1", "--cplife-mesh=cp=2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *all of the adapter's meshes; dp2-cp2 would be left out*"])


def test_certifying_accepts_a_whole_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE", "healthy")
    result = run("--cplife-certify")
    result.assert_outcomes(passed=TOTAL - 3, skipped=3)
    assert result.ret == pytest.ExitCode.OK


def test_certifying_refuses_a_part_that_was_named(run: Run) -> None:
    result = run("--cplife-certify", "conformance/test_grad.py")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([f"problem: not certified: {TOTAL - 3} not run"])


def test_plain_pytest_finds_the_adapter_in_the_current_folder(
    run: Run, pytester: pytest.Pytester
) -> None:
    # `python -m pytest` would add the folder to the path all by itself.
    script = Path(sys.executable).with_name("pytest")
    result = subprocess.run(
        [script, "-p", "fakes", "--cplife-adapter=mymod:Adapter", "-k", "ADAPTER"],
        cwd=pytester.path,
        capture_output=True,
        text=True,
    )
    assert "1 passed" in result.stdout


def test_listing_the_rules_needs_no_adapter(run: Run) -> None:
    result = run("--cplife-rules", adapter=None)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "ADAPTER: the adapter itself",
            "  ADAPTER-01 the adapter has the shape of a LifecycleAdapter",
            "  SCHED-01   learning rate continues  (needs schedulers)",
            "7 rules; *",
        ]
    )


def test_explaining_a_rule(run: Run) -> None:
    result = run("--cplife-rules", "sched-01")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["SCHED-01 learning rate continues", "rule *It holds that*", "needs   schedulers"]
    )


def test_a_rule_that_does_not_exist(run: Run) -> None:
    result = run("--cplife-rules", "GO-99", adapter=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --cplife-rules: no rule 'GO-99'; there are GO-01, GO-02"])


def test_the_template_is_a_sound_adapter(run: Run, pytester: pytest.Pytester) -> None:
    assert run("--cplife-new-adapter=mine.py", adapter=None).ret == 0
    run("-k", "ADAPTER", adapter="mine.py:Adapter").assert_outcomes(passed=1, deselected=18)
    before = (pytester.path / "mine.py").read_text()
    result = run("--cplife-new-adapter=mine.py", adapter=None)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*mine.py exists; it is left alone"])
    assert (pytester.path / "mine.py").read_text() == before


def test_the_fixture_gives_the_adapter(run: Run, pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile(
        "def test_own(cplife_adapter): assert cplife_adapter.__name__ == 'Adapter'"
    )
    run(str(own)).assert_outcomes(passed=1)
    result = run(str(own), adapter=None)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["cplife_adapter needs --cplife-adapter=MOD:ATTR*"])
    result = run(str(own), adapter="mymod:Nope")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["mymod has no 'Nope'; it holds the adapters *"])
