"""SAVE: what the plain checkpoint says of itself: whose state it holds, and of which version."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Violation
from pytest_cplife.rules.registry import rule

_FILE = ("saving", "files")


@rule(
    "SAVE-14",
    "optimizer state is kept by name",
    statement="In the file the optimizer's state and groups are keyed by parameter name, or the"
    " groups list the names beside their numbers (param_names).",
    why="A number means the position in the code of that day; a parameter that is added or moved"
    " makes it mean another.",
    cause="optimizer.state_dict() of an optimizer that was given parameters without their names.",
    level="should",
    runs=_FILE,
    events=("trainable parameters",),
)
def state_by_name(case: Case) -> Iterator[Finding]:
    file = case["files"].file("saved")
    if not file.optimizers:
        raise NotCovered(
            "no optimizer state was recognised in the file (a mapping with 'state' and"
            " 'param_groups')"
        )
    for position, optimizer in enumerate(file.optimizers):
        if optimizer.integer_keys and not optimizer.listed:
            yield Violation(f"optimizer {position}", "names", "numbers alone", "file")


@rule(
    "SAVE-15",
    "module versions are kept",
    statement="For every module whose version is not the first, the model's state in the file notes"
    " that version (the _metadata of state_dict()).",
    why="A module that has changed its layout asks for the version to know what it is given; with"
    " none it takes today's file for one of old.",
    cause="A state dict copied entry by entry into a plain dict, which drops the attribute.",
    level="should",
    runs=("serial", *_FILE),
)
def versions_kept(case: Case) -> Iterator[Finding]:
    wanted = {
        name: version
        for name, version in case["serial"].fact("versions")[0].items()
        if version != 1
    }
    if not wanted:
        raise NotCovered("no module of the model has a version other than the first")
    noted = case["files"].file("saved").versions
    for name, version in wanted.items():
        if noted.get(name) != version:
            seen = f"version {noted[name]}" if name in noted else "none"
            yield Violation(f"{name}: version", f"version {version}", seen, "file")
