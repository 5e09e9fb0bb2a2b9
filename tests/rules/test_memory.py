"""What ranks may hold while they save and load, on evidence made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from pytest_cplife.evidence.weighing import Weight
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.weights import BOOKKEEPING, GATHERING, READING, sizes_of
from tests.rules.builders import Lab, findings, measured, subjects, violations

COUNT = 40
LARGEST = 10 * 4
WHOLE = COUNT * LARGEST
PHASES = ("start", "train", "save", "load", "load sharded", "close")


def weighed(lab: Lab, peaks: Sequence[int], numbers: int = 0) -> Case:
    """A run with as many sharded parameters as `COUNT`, of ten elements each."""
    parameters = {f"w{n}": lab.sharded(torch.arange(10.0) + n) for n in range(COUNT)}
    moments = {
        name: lab.snapshots(parameters=parameters)
        for name in ("before save", "after load", "after sharded load")
    }
    weights = [Weight(peak, numbers) for peak in peaks]
    facts = {f"{what}: weight": weights for what in ("save", "load", "load sharded")}
    return lab.case(lab.run("weighed", moments, facts=facts, phases=PHASES))


def test_the_sizes_of_a_state(lab: Lab) -> None:
    state = weighed(lab, [0, 0])["weighed"].at("before save")
    sizes = sizes_of(state)
    assert (sizes.largest, sizes.whole, sizes.local) == (LARGEST, WHOLE, (WHOLE // 2, WHOLE // 2))


def test_a_tied_pair_is_one_tensor(lab: Lab) -> None:
    tied = [lab.sharded([1.0, 2.0], identity=7)] * 2
    state = lab.run(
        "weighed", {"now": lab.snapshots(parameters=dict(zip("ab", tied, strict=True)))}
    )
    assert sizes_of(state.at("now")).whole == 8


@pytest.mark.parametrize("rule", ["MEM-01", "MEM-02", "MEM-03"])
def test_within_what_is_allowed(lab: Lab, rule: str) -> None:
    case = weighed(lab, [GATHERING * LARGEST] * 2 if rule == "MEM-01" else [WHOLE // 2] * 2)
    assert violations(rule, case) == []
    assert [m.difference for m in measured(findings(rule, case)) if "bytes" in m.what]


@pytest.mark.parametrize("rule", ["MEM-01", "MEM-02"])
def test_one_rank_may_hold_everything(lab: Lab, rule: str) -> None:
    assert subjects(rule, weighed(lab, [2 * WHOLE, 0])) == []
    assert subjects(rule, weighed(lab, [2 * WHOLE, WHOLE])) == ["rank 0", "rank 1"]


def test_of_a_sharded_load_none_may(lab: Lab) -> None:
    assert subjects("MEM-03", weighed(lab, [0, WHOLE])) == ["rank 1"]
    most = WHOLE // 2 + READING * LARGEST
    assert subjects("MEM-03", weighed(lab, [most, most + 1])) == ["rank 1"]


def test_a_state_that_is_sent_as_bytes_counts(lab: Lab) -> None:
    assert subjects("MEM-01", weighed(lab, [0, 0], numbers=BOOKKEEPING)) == []
    found = subjects("MEM-01", weighed(lab, [0, 0], numbers=BOOKKEEPING + WHOLE))
    assert found == ["rank 0", "rank 1"]


def test_where_sound_and_faulty_are_not_apart(lab: Lab) -> None:
    parameters = {"w": lab.sharded(torch.arange(10.0))}
    moments = {"before save": lab.snapshots(parameters=parameters)}
    facts = {"save: weight": [Weight(), Weight()]}
    case = lab.case(lab.run("weighed", moments, facts=facts, phases=PHASES))
    with pytest.raises(NotCovered, match="state's 40 bytes a sound trainer's rank may hold 240"):
        violations("MEM-01", case)


def test_one_rank_gathers_for_nobody(lab: Lab) -> None:
    with pytest.raises(NotCovered, match="there is one rank"):
        violations("MEM-01", weighed(lab.on("dp=1"), [0]))
