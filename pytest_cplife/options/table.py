"""Every option once, as data: name, kind, and what the help says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_cplife.launchers import LAUNCHERS
from pytest_cplife.settings import PROFILES, Settings

DEFAULTS = Settings(adapter="", workdir=Path())
DEVICES = ("cpu", "cuda")
BACKENDS = ("auto", "gloo", "nccl")
LEVELS = ("should", "must")
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
    Option(
        "level",
        "value",
        "LEVEL",
        "should, the default: every broken rule fails the run; must: one that only says what "
        "should be is reported as advice",
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
    Option(
        "profile",
        "value",
        "NAME",
        f"how much the FUZZ rules try: {', '.join(PROFILES)} (default: {DEFAULTS.profile})",
    ),
    Option(
        "fuzz-seconds",
        "value",
        "SECONDS",
        f"how long each FUZZ rule tries in profile explore (default: {DEFAULTS.fuzz_seconds:g})",
    ),
    Option("replay", "argument", "FILE", "try the one example again that a failed FUZZ rule kept"),
    Option("certify", "flag", "", "refuse deselection, expected failures and fewer meshes"),
    Option(
        "selftest",
        "action",
        "",
        "judge planted faults and healthy trainers: does the suite find what it must, here?",
    ),
    Option("new-adapter", "argument", "PATH", "write a commented template of an adapter and exit"),
)
"""In the order of the help."""

RANKS = frozenset({"max-world-size", "device", "backend", "launcher", "timeout"})
"""Options about ranks, which are as good for users' own tests."""

WITHOUT_ADAPTER = RANKS | {"adapter", "replay", "rules", "selftest", "new-adapter"}
"""Options that mean something where no adapter is given."""


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
