"""The command line and its ini twins, resolved into one checked value.

Every option has a twin in the ini file (``--cplife-mesh`` and ``cplife_mesh``) except
those that ask for an action. Values stay strings until they are resolved, so that xdist
can hand them to its workers, and a value that cannot be used ends in a
:class:`pytest.UsageError` that says what was found and what is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_cplife.launchers import LAUNCHERS
from pytest_cplife.mesh import MeshSpec, parse_meshes
from pytest_cplife.settings import Settings

DEFAULTS = Settings(adapter="", workdir=Path())
DEVICES = ("cpu", "cuda")
BACKENDS = ("auto", "gloo", "nccl")
REPORT_SUFFIXES = (".json", ".md")

Kind = Literal["value", "list", "flag", "action", "argument", "query"]
_ACTIONS: dict[Kind, dict[str, Any]] = {
    "value": {"action": "store"},
    "list": {"action": "append"},
    "flag": {"action": "store_const", "const": True},
    "action": {"action": "store_const", "const": True},
    "argument": {"action": "store"},
    "query": {"action": "store", "nargs": "?", "const": ""},
}
_INI_TYPES: dict[Kind, Literal["string", "linelist", "bool"]] = {
    "value": "string",
    "list": "linelist",
    "flag": "bool",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option: ``--cplife-NAME``; a `kind` in `_INI_TYPES` has the ini twin ``cplife_NAME``."""

    name: str
    kind: Kind
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        return f"--cplife-{self.name}" if self.name else "--cplife"

    @property
    def dest(self) -> str:
        # `--cplife` itself needs another name than the prefix of all the others.
        return f"cplife_{self.name or 'suite'}".replace("-", "_")

    @property
    def has_ini(self) -> bool:
        return self.kind in _INI_TYPES


OPTIONS = (
    Option(
        "adapter",
        "value",
        "MOD:ATTR",
        "the adapter of the trainer to judge, or path/to/file.py:ATTR; "
        "given here and without paths, just the conformance suite runs",
    ),
    Option("", "action", "", "add the conformance suite to the tests that run anyway"),
    Option("mesh", "list", "SPEC", "a mesh to run on, such as dp=2,cp=2 (default: the adapter's)"),
    Option("max-world-size", "value", "N", "do not run meshes of more than N ranks"),
    Option("device", "value", "DEVICE", f"{' or '.join(DEVICES)} (default: {DEFAULTS.device})"),
    Option(
        "backend",
        "value",
        "BACKEND",
        f"{', '.join(BACKENDS)} (default: {DEFAULTS.backend}, by device)",
    ),
    Option(
        "launcher",
        "value",
        "NAME",
        f"how ranks are started: {', '.join(LAUNCHERS)} (default: {DEFAULTS.launcher})",
    ),
    Option(
        "steps",
        "value",
        "N,K",
        "optimizer steps before the save and after it "
        f"(default: {','.join(map(str, DEFAULTS.steps))})",
    ),
    Option(
        "timeout",
        "value",
        "SECONDS",
        f"deadline of one call on the ranks (default: {DEFAULTS.timeout:g})",
    ),
    Option("rules", "query", "ID", "list the rules, or explain one, and exit"),
    Option(
        "require",
        "list",
        "CAP[,CAP]",
        "capabilities without which a rule that needs them fails instead of being not covered",
    ),
    Option("strict", "flag", "", "a rule that is not covered is a failure"),
    Option(
        "expected",
        "value",
        "FILE.toml",
        "failures that are expected, by rule, with a reason; stale entries fail",
    ),
    Option(
        "golden",
        "value",
        "DIR",
        "a folder of golden archives: each is loaded on every mesh and compared bit for bit",
    ),
    Option(
        "record-golden",
        "value",
        "DIR",
        "add the trainer's checkpoint to that folder of golden archives, if it says anything new",
    ),
    Option(
        "report",
        "list",
        "PATH",
        f"write a report; the suffix says which: {', '.join(REPORT_SUFFIXES)}",
    ),
    Option("certify", "flag", "", "refuse deselection, expected failures and fewer meshes"),
    Option("new-adapter", "argument", "PATH", "write a commented template of an adapter and exit"),
)
"""In the order of the help."""

_RANKS = {"max-world-size", "device", "backend", "launcher", "timeout"}
"""Options about ranks, which are as good for users' own tests."""
_WITHOUT_ADAPTER = {"adapter", "rules", "new-adapter"} | _RANKS


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("cplife", "lifecycle conformance of sharded models (pytest-cplife)")
    for option in OPTIONS:
        extra = {"metavar": option.metavar} if option.metavar else {}
        group.addoption(
            option.flag,
            dest=option.dest,
            default=None,
            help=option.help,
            **_ACTIONS[option.kind],
            **extra,
        )
        if option.has_ini:
            parser.addini(
                option.dest,
                help=f"twin of {option.flag}",
                type=_INI_TYPES[option.kind],
                default=None if option.kind == "value" else [] if option.kind == "list" else False,
            )
    parser.addini(
        "cplife_junit_properties",
        help="write rule, mesh and outcome as properties of the JUnit test case (default: true)",
        type="bool",
        default=True,
    )


@dataclass(frozen=True, slots=True)
class Options:
    """What the session was asked for.

    Attributes:
        adapter: as the user gave it.
        base: the folder that a relative module or path of the adapter is meant from.
        given_by_option: the adapter stands on the command line, not in the ini file.
        suite: the conformance suite is to be added to the user's tests.
        golden: the archives to load; None also where the first is yet to be recorded there.
    """

    adapter: str
    base: Path
    given_by_option: bool
    suite: bool
    meshes: tuple[MeshSpec, ...]
    max_world_size: int | None
    steps: tuple[int, int]
    launcher: str
    device: str
    backend: str
    timeout: float
    strict: bool
    require: tuple[str, ...]
    expected: Path | None
    golden: Path | None
    record_golden: Path | None
    reports: tuple[Path, ...]
    certify: bool

    @property
    def reference(self) -> str:
        """The adapter, as any process can find it whatever its current directory."""
        place, colon, attribute = self.adapter.rpartition(":")
        if colon and place.endswith(".py"):
            return f"{self.base / place}:{attribute}"
        return self.adapter

    def settings(self, workdir: Path) -> Settings:
        return Settings(
            adapter=self.reference,
            workdir=workdir,
            meshes=self.meshes,
            max_world_size=self.max_world_size,
            steps=self.steps,
            launcher=self.launcher,
            device=self.device,
            backend=self.backend,
            timeout=self.timeout,
            strict=self.strict,
            require=self.require,
            golden=self.golden,
        )

    def command(self, rule: str, mesh: str) -> list[str]:
        """The arguments that run just `rule` on `mesh` again.

        The meshes stay what they were, because a rule may load on one what was saved on another.
        """
        words = ["pytest", f"--cplife-adapter={self.adapter}"]
        words += [f"--cplife-mesh={spec.option}" for spec in self.meshes]
        if self.max_world_size is not None:
            words.append(f"--cplife-max-world-size={self.max_world_size}")
        for name in ("device", "backend", "launcher"):
            if getattr(self, name) != getattr(DEFAULTS, name):
                words.append(f"--cplife-{name}={getattr(self, name)}")
        if self.steps != DEFAULTS.steps:
            words.append(f"--cplife-steps={','.join(map(str, self.steps))}")
        if self.timeout != DEFAULTS.timeout:
            words.append(f"--cplife-timeout={self.timeout:g}")
        if self.strict:
            words.append("--cplife-strict")
        if self.require:
            words.append(f"--cplife-require={','.join(self.require)}")
        if self.golden is not None:
            words.append(f"--cplife-golden={self.golden}")
        # The brackets are part of the test's id: without them dp2 would also select dp2-cp2.
        return [*words, "-k", f"{rule} and [{mesh}]" if mesh else rule]


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How ranks come to be, for the suite and for users' own tests."""

    max_world_size: int | None
    launcher: str
    device: str
    backend: str
    timeout: float


def resolve_ranks(config: pytest.Config) -> RankOptions:
    """The checked options about ranks, which need no adapter.

    Raises:
        pytest.UsageError: a value cannot be used.
    """
    read = _Reader(config)
    device = read.choice("device", DEVICES, DEFAULTS.device)
    backend = read.choice("backend", BACKENDS, DEFAULTS.backend)
    if (device, backend) == ("cpu", "nccl"):
        raise pytest.UsageError(
            "--cplife-backend=nccl needs --cplife-device=cuda; on cpu, accepted are auto and gloo"
        )
    return RankOptions(
        max_world_size=read.count("max-world-size"),
        launcher=read.choice("launcher", LAUNCHERS, DEFAULTS.launcher),
        device=device,
        backend=backend,
        timeout=read.seconds("timeout", DEFAULTS.timeout),
    )


def resolve(config: pytest.Config) -> Options | None:
    """The checked options; None where no adapter is given and the plugin stays dormant.

    Raises:
        pytest.UsageError: a value cannot be used, or an option needs an adapter.
    """
    option_adapter = config.getoption("cplife_adapter")
    adapter = option_adapter if option_adapter is not None else config.getini("cplife_adapter")
    if not adapter:
        _refuse_without_adapter(config)
        return None
    read = _Reader(config)
    ranks = resolve_ranks(config)
    options = Options(
        adapter=adapter,
        base=config.invocation_params.dir if option_adapter is not None else read.ini_base,
        given_by_option=option_adapter is not None,
        suite=bool(config.getoption("cplife_suite")),
        meshes=read.meshes(),
        max_world_size=ranks.max_world_size,
        steps=read.steps(),
        launcher=ranks.launcher,
        device=ranks.device,
        backend=ranks.backend,
        timeout=ranks.timeout,
        strict=read.flag("strict"),
        require=tuple(
            dict.fromkeys(
                word.strip()
                for text in read.texts("require")
                for word in text.split(",")
                if word.strip()
            )
        ),
        expected=read.path("expected"),
        golden=read.golden(),
        record_golden=read.record_golden(),
        reports=read.reports(),
        certify=read.flag("certify"),
    )
    if options.certify and options.expected is not None:
        raise pytest.UsageError(
            "--cplife-certify accepts no expected failures; leave out "
            f"--cplife-expected={options.expected.name}"
        )
    return options


def _refuse_without_adapter(config: pytest.Config) -> None:
    """An option that would silently do nothing is a mistake of the user's that must show."""
    for option in OPTIONS:
        if option.name not in _WITHOUT_ADAPTER and config.getoption(option.dest) is not None:
            raise pytest.UsageError(
                f"{option.flag} needs an adapter: give --cplife-adapter=MOD:ATTR, "
                "or cplife_adapter in the ini file"
            )


class _Reader:
    """Reads options by name: the command line first, then the ini twin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.ini_base = config.inipath.parent if config.inipath else config.rootpath

    def _raw(self, name: str) -> tuple[Any, Path]:
        dest = f"cplife_{name.replace('-', '_')}"
        value = self._config.getoption(dest)
        if value is not None:
            return value, self._config.invocation_params.dir
        return self._config.getini(dest), self.ini_base

    def text(self, name: str) -> str | None:
        value, _ = self._raw(name)
        return None if value is None or value == "" else str(value)

    def texts(self, name: str) -> Sequence[str]:
        return list(self._raw(name)[0] or ())

    def flag(self, name: str) -> bool:
        return bool(self._raw(name)[0])

    def path(self, name: str) -> Path | None:
        value, base = self._raw(name)
        return base / str(value) if value else None

    def choice(self, name: str, accepted: tuple[str, ...], default: str) -> str:
        found = self.text(name)
        if found is None:
            return default
        if found not in accepted:
            raise _bad(name, found, " or ".join(accepted))
        return found

    def count(self, name: str) -> int | None:
        found = self.text(name)
        if found is None:
            return None
        if not found.isdecimal() or int(found) < 1:
            raise _bad(name, found, "a whole number from 1")
        return int(found)

    def seconds(self, name: str, default: float) -> float:
        found = self.text(name)
        if found is None:
            return default
        try:
            value = float(found)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise _bad(name, found, "a number of seconds above 0")
        return value

    def steps(self) -> tuple[int, int]:
        found = self.text("steps")
        if found is None:
            return DEFAULTS.steps
        parts = [part.strip() for part in found.split(",")]
        if len(parts) != 2 or not all(part.isdecimal() and int(part) >= 1 for part in parts):
            raise _bad(
                "steps", found, "two whole numbers from 1: steps before the save and after it"
            )
        return int(parts[0]), int(parts[1])

    def meshes(self) -> tuple[MeshSpec, ...]:
        try:
            return parse_meshes(self.texts("mesh"))
        except ValueError as error:
            raise pytest.UsageError(f"--cplife-mesh: {error}") from None

    def golden(self) -> Path | None:
        folder = self.path("golden")
        if folder is None:
            return None
        found = folder.is_dir() and self._check_archives("golden", folder)
        if not found and folder != self.path("record-golden"):
            raise _bad(
                "golden",
                str(self.text("golden")),
                "a folder with golden archives; --cplife-record-golden=DIR makes one",
            )
        return folder if found else None

    def record_golden(self) -> Path | None:
        folder = self.path("record-golden")
        if folder is not None and folder.is_dir():
            self._check_archives("record-golden", folder)
        elif folder is not None and folder.exists():
            raise _bad("record-golden", str(self.text("record-golden")), "a folder; this is a file")
        return folder

    def _check_archives(self, name: str, folder: Path) -> bool:
        """Whether there are any, all of which can be used."""
        # Only here, because most runs of pytest have no use for it.
        from pytest_cplife.evidence.golden import BadArchive, archives_in

        try:
            return bool(archives_in(folder))
        except BadArchive as problem:
            raise pytest.UsageError(f"--cplife-{name}={self.text(name)}: {problem}") from None

    def reports(self) -> tuple[Path, ...]:
        values, base = self._raw("report")
        paths = tuple(base / str(value) for value in values or ())
        for path in paths:
            if path.suffix not in REPORT_SUFFIXES:
                raise _bad(
                    "report", path.name, f"a path that ends in {' or '.join(REPORT_SUFFIXES)}"
                )
            if path.is_dir():
                raise _bad("report", path.name, "a file; this is a folder")
        return paths


def _bad(name: str, found: str, accepted: str) -> pytest.UsageError:
    return pytest.UsageError(f"--cplife-{name}={found}: accepted is {accepted}")
