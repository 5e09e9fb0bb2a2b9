"""CRASH-39 on hand-made evidence: what is loaded where the newest checkpoint lacks a file."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_cplife.evidence.folders import FolderState
from pytest_cplife.evidence.snapshot import Snapshot
from pytest_cplife.scenarios.crash_newest import NONE, WITHOUT
from tests.rules.builders import Lab, violations

SILENT, LOUD, EMPTY = ["", ""], ["ValueError: no file"] * 2, [f"FileNotFoundError: {NONE}"] * 2


def state(lab: Lab, number: int, step: int | None = None) -> list[Snapshot]:
    weights = {"w": lab.sharded([float(number)] * 3)}
    return lab.snapshots("state", parameters=weights, step=step or number)


def lacking(
    lab: Lab,
    outcomes: Sequence[str],
    loaded: list[Snapshot] | None = None,
    left: tuple[str, ...] = ("c", "d"),
) -> list[str]:
    """Four generations were saved, of which those are there that `left` names."""
    saving = lab.run(
        "advancing",
        {f"generation {n}": state(lab, n) for n in range(1, 5)},
        facts={"added": [list("abcd")] * 2, "left": [list(left)] * 2},
    )
    whole = FolderState("generation 4", "t4", "x", False)
    phases = ("put back", "start", "load", "take away", "load without a file", "close")
    loading = lab.run(
        "found",
        {"t4": state(lab, 4), **({WITHOUT: loaded} if loaded else {})},
        facts={
            "states": [[whole]] * 2,
            f"{WITHOUT}: refused": outcomes,
            f"{WITHOUT}: which": ["d/largest"] * 2,
        },
        phases=phases,
    )
    found = violations("CRASH-39", lab.case(saving, loading))
    return [f"{each.subject}: {each.observed}" for each in found]


def test_an_older_one_or_a_refusal(lab: Lab) -> None:
    assert lacking(lab, LOUD) == []
    assert lacking(lab, SILENT, state(lab, 3)) == []
    # The file was not needed.
    assert lacking(lab, SILENT, state(lab, 4)) == []


def test_what_is_no_checkpoint_of_the_folder(lab: Lab) -> None:
    for loaded in (state(lab, 3, step=4), state(lab, 9), state(lab, 2)):
        assert len(lacking(lab, SILENT, loaded)) == 1


def test_ranks_that_part(lab: Lab) -> None:
    told = ["", "ValueError: no file"]
    assert lacking(lab, told, state(lab, 3)) == [
        "d/largest: refused by rank 1 and loaded by the others"
    ]


def test_none_beside_an_older_one(lab: Lab) -> None:
    assert lacking(lab, EMPTY) == [f"d/largest: {NONE}"]
    assert lacking(lab, EMPTY, left=("d",)) == []
