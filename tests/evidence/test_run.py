"""The evidence of a run over its ranks, and what is said where it does not reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.evidence.records import TensorRecord, ValueRecord
from pytest_cplife.evidence.run import RunFailure, Unanswered
from pytest_cplife.evidence.store import TensorStore
from tests.rules.builders import Lab, file_of, step_of


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(TensorStore(tmp_path))


def test_columns_have_what_every_rank_has(lab: Lab) -> None:
    weight = lab.sharded([1.0, 2.0])
    seen = lab.snapshots(
        parameters={"w": weight, "v": [weight[0], None], "u": [None, weight[1]]},
        buffers={"b": lab.plain(1.0, 2.0)},
        state={"w": {"exp_avg": weight, "step": [ValueRecord("int", "1")] * 2}},
        ema={"w": weight},
    )
    moment = lab.run("saving", {"now": seen}).at("now")
    assert moment.label == "saving: now"
    assert list(moment.parameters) == ["w"]
    assert [r.digest for r in moment.parameters["w"]] == [r.digest for r in weight]
    assert list(moment.buffers) == ["b"]
    assert list(moment.optimizer_state) == ["w[exp_avg]", "w[step]"]
    assert list(moment.optimizer_tensors) == ["w[exp_avg]"]
    assert all(isinstance(r, TensorRecord) for r in moment.optimizer_tensors["w[exp_avg]"])
    assert list(moment.ema) == ["w"]
    assert moment.key_sets(lambda s: s.parameters) == [{"w", "v"}, {"w", "u"}]
    assert moment.groups[0].names == ("w", "v", "u")


def test_a_run_without_averages_has_an_empty_table(lab: Lab) -> None:
    assert lab.run("saving", {"now": lab.snapshots()}).at("now").ema == {}


def test_stretches_follow_each_other(lab: Lab) -> None:
    one, two = step_of({}), step_of({}, global_step=1)
    run = lab.run(
        "uninterrupted",
        steps={"first": [[one]] * 2, "rest": [[two, two], [two]]},
        losses={"first": [[1.0]] * 2, "rest": [[0.5, 0.25], [0.5]]},
    )
    assert [len(steps) for steps in run.steps("first", "rest")] == [3, 2]
    assert run.losses("first", "rest") == [[1.0, 0.5, 0.25], [1.0, 0.5]]
    assert run.all_losses() == [[1.0, 0.5, 0.25], [1.0, 0.5]]


def asks(run: Any) -> list[Any]:
    return [
        lambda: run.at("after load"),
        lambda: run.steps("after load"),
        lambda: run.losses("after load"),
        lambda: run.fact("after load"),
        lambda: run.file("after load"),
    ]


@pytest.mark.parametrize("which", range(5))
def test_what_is_not_there_is_unanswered(lab: Lab, which: int) -> None:
    for run in (lab.run("resumed"), lab.run("resumed", held_back="saving")):
        with pytest.raises(Unanswered) as caught:
            asks(run)[which]()
        assert (caught.value.run, caught.value.wanted) == ("resumed", "after load")
        assert caught.value.not_offered == ""
        assert str(caught.value) == "resumed: after load"


@pytest.mark.parametrize("which", range(5))
def test_what_is_not_offered_says_why(lab: Lab, which: int) -> None:
    run = lab.run("resumed", absent={"after load": "capability x is not offered"})
    with pytest.raises(Unanswered) as caught:
        asks(run)[which]()
    assert caught.value.not_offered == "capability x is not offered"


def test_a_failure_is_no_lack_of_an_offer(lab: Lab) -> None:
    failure = RunFailure("load", (0,), "", "")
    run = lab.run("resumed", absent={"after load": "not offered"}, failure=failure)
    with pytest.raises(Unanswered) as caught:
        run.at("after load")
    assert caught.value.not_offered == ""


def test_one_rank_that_did_not_get_there_is_enough(lab: Lab) -> None:
    run = lab.run(
        "saving", {"now": lab.snapshots()}, facts={"saved": [1, 2]}, phases=("start", "save")
    )
    assert run.completed("save")
    del run.ranks[1].snapshots["now"], run.ranks[1].facts["saved"], run.ranks[1].phases["save"]
    assert not run.completed("save")
    assert run.completed("start")
    for ask in (lambda: run.at("now"), lambda: run.fact("saved")):
        with pytest.raises(Unanswered):
            ask()


def test_nothing_completed_where_there_are_no_ranks(lab: Lab) -> None:
    assert not lab.run("resumed", held_back="saving").completed("start")


def test_files_are_the_first_ranks(lab: Lab) -> None:
    record = file_of({})
    run = lab.run("files", files={"saved": record})
    run.ranks[1].files.clear()
    assert run.file("saved") is record
