"""SAVE-17 on hand-made evidence: which weights have come through, and which were never written."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_cplife.rules.case import Case, NotCovered
from tests.rules.builders import Lab, file_of, subjects

BEFORE, EDGES = [1.0, 2.0, 3.0], [-0.0, 1e-45, 3e38]
LOST = {"sign": [0.0, 1e-45, 3e38], "subnormal": [-0.0, 0.0, 3e38], "clamped": [-0.0, 1e-45, 7e4]}


def through(lab: Lab, saved: Any, loaded: Any = None) -> Case:
    """Weights in two shards; `loaded` is None where the run cannot load again."""
    other = {"other": lab.replicated(BEFORE)}
    moments = {
        moment: lab.snapshots(parameters={"w": lab.sharded(values), **other})
        for moment, values in (("after load", BEFORE), ("edges", EDGES), ("edges loaded", loaded))
        if values is not None
    }
    file = {name: lab.plain(values)[0] for name, values in (("w", saved), ("other", BEFORE))}
    absent = {} if loaded else {"edges loaded": "the run loads before its first step only"}
    run = lab.run("relayed again", moments, files={"edges": file_of(file)}, absent=absent)
    return lab.case(run)


def test_what_comes_through(lab: Lab) -> None:
    assert subjects("SAVE-17", through(lab, EDGES, EDGES)) == []
    assert subjects("SAVE-17", through(lab, EDGES)) == []


@pytest.mark.parametrize("lost", LOST)
def test_what_is_lost(lab: Lab, lost: str) -> None:
    assert subjects("SAVE-17", through(lab, LOST[lost], LOST[lost])) == ["w", "w"]
    assert subjects("SAVE-17", through(lab, LOST[lost])) == ["w"]
    assert subjects("SAVE-17", through(lab, EDGES, LOST[lost])) == ["w"]


def test_weights_that_are_made_from_masters(lab: Lab) -> None:
    """Nobody has written to the masters, so that what was before comes back."""
    assert subjects("SAVE-17", through(lab, EDGES, BEFORE)) == []
    with pytest.raises(NotCovered, match="copies of its own"):
        subjects("SAVE-17", through(lab, BEFORE, EDGES))
