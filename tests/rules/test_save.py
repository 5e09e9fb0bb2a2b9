"""SAVE on evidence made by hand: what is in a file, and what a save leaves behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_cplife.evidence.filing import FileOptimizer, FileRecord
from pytest_cplife.evidence.records import GroupRecord, Record, ValueRecord
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.rules.case import Case, NotCovered
from tests.evidence.layouts import replicate
from tests.rules.builders import Lab, file_of, findings, measured, subjects, values, violations


def live(lab: Lab) -> dict[str, Any]:
    return {
        "parameters": {"a": lab.sharded([1.0, 2.0, 3.0]), "b": lab.replicated([4.0])},
        "buffers": {"t": lab.plain([5.0])},
        "state": {
            "a": {"exp_avg": lab.sharded([6.0, 7.0, 8.0]), "step": lab.plain(3.0)},
            "b": {"exp_avg": lab.replicated([9.0]), "step": lab.plain(3.0)},
        },
    }


def model(lab: Lab) -> dict[str, Record]:
    return {
        "a": lab.plain([1.0, 2.0, 3.0])[0],
        "b": lab.plain([4.0])[0],
        "t": lab.plain([5.0])[0],
    }


def optimizer(lab: Lab, keys: Sequence[str] = ("a", "b")) -> FileOptimizer:
    moments: list[Any] = [[6.0, 7.0, 8.0], [9.0]]
    state = {
        key: {"exp_avg": lab.plain(moment)[0], "step": lab.plain(3.0)[0]}
        for key, moment in zip(keys, moments, strict=True)
    }
    return FileOptimizer(state, (GroupRecord(0, 0, tuple(keys), {}),))  # type: ignore[arg-type]


def case(lab: Lab, record: FileRecord, groups: Sequence[str] = ("a", "b"), **more: Any) -> Case:
    group = GroupRecord(0, 0, tuple(groups), {})
    seen = lab.snapshots(**live(lab), groups=[group])
    build = {"state_dict": model(lab)}
    return lab.case(
        lab.run("serial", facts={"first build": [build]}, ranks=1),
        lab.run("saving", {"before save": seen}, phases=("save",)),
        lab.run("files", files={"saved": record}, ranks=1),
        **more,
    )


def test_a_sound_file_passes(lab: Lab) -> None:
    sound = case(lab, file_of(model(lab), optimizers=(optimizer(lab),)))
    for rule in ("SAVE-02", "SAVE-04", "SAVE-05", "SAVE-06", "SAVE-10"):
        assert violations(rule, sound) == []
    (weights,) = measured(findings("SAVE-05", sound))
    assert "(3 compared)" in weights.what
    (state,) = measured(findings("SAVE-06", sound))
    assert "(4 compared)" in state.what


def test_the_checkpoint_is_there_for_every_rank(lab: Lab) -> None:
    run = lab.run("saving", facts={"saved": [True, False]})
    (violation,) = violations("SAVE-01", lab.case(run))
    assert violation.ranks == (1,)


def test_dtensors_in_the_file(lab: Lab) -> None:
    record = file_of(model(lab), dtensors=("optimizer['state'][0]['exp_avg']", "x.y"))
    assert subjects("SAVE-02", case(lab, record)) == ["optimizer['state'][0]['exp_avg']", "x.y"]


def test_keys(lab: Lab) -> None:
    full = model(lab)
    fewer = {key: full[key] for key in ("a", "t")}
    turned = {key: full[key] for key in ("b", "a", "t")}
    for record, broken in (
        (file_of(fewer), ["b"]),
        (file_of(full | {"c": full["a"]}), ["c"]),
        (file_of(full, prefix="module."), ["module.*"]),
        (file_of(turned), ["b"]),
        (file_of(full | {"_extra_state": ValueRecord("dict", "{}")}), []),
    ):
        assert subjects("SAVE-04", case(lab, record)) == broken


@pytest.mark.parametrize(
    ("prefix", "meant", "broken"),
    [
        ("net.", False, ["net.*"]),
        ("net.", True, []),
        ("module.", True, ["module.*"]),
        ("net._orig_mod.", True, ["net._orig_mod.*"]),
    ],
)
def test_a_prefix_that_the_serial_load_takes_off(
    lab: Lab, prefix: str, meant: bool, broken: list[str]
) -> None:
    """A program's own prefix is its format; a wrapper's is an accident, whoever takes it off."""
    record = case(lab, file_of(model(lab), prefix=prefix))
    record = replace(record, declared=replace(record.declared, loads_serially=meant))
    assert subjects("SAVE-04", record) == broken


@pytest.mark.parametrize(
    "value", [[1.0, 2.0], [1.0, 2.0, 3.5], [-1.0, 2.0, 3.0]], ids=["shard", "other", "sign"]
)
def test_values(lab: Lab, value: list[float]) -> None:
    record = file_of({**model(lab), "a": lab.plain(value)[0]})
    assert subjects("SAVE-05", case(lab, record)) == ["a"]
    stale = file_of({**model(lab), "t": lab.plain([0.0])[0]})
    assert subjects("SAVE-05", case(lab, stale)) == ["t"]


def test_buffers_that_are_not_saved_are_not_asked_for(lab: Lab) -> None:
    seen = lab.snapshots(**live(lab), persistent=("a", "b"))
    stale = file_of({**model(lab), "t": lab.plain([0.0])[0]})
    one = lab.case(
        lab.run("saving", {"before save": seen}),
        lab.run("files", files={"saved": stale}, ranks=1),
    )
    assert subjects("SAVE-05", one) == []


def test_integer_keys_go_by_the_order_of_the_groups(lab: Lab) -> None:
    record = file_of(model(lab), optimizers=(optimizer(lab, ("0", "1")),))
    assert subjects("SAVE-06", case(lab, record)) == []
    assert subjects("SAVE-06", case(lab, record, groups=("b", "a")))


def test_optimizer_state_that_is_lost_or_wrong(lab: Lab) -> None:
    whole = optimizer(lab)
    no_step = replace(whole, state={**whole.state, "a": {"exp_avg": whole.state["a"]["exp_avg"]}})
    no_b = replace(whole, state={"a": whole.state["a"]})
    shard = {"exp_avg": lab.plain([6.0, 7.0])[0], "step": whole.state["a"]["step"]}
    for seen, broken in (
        (no_step, ["a[step]"]),
        (no_b, ["b[exp_avg]", "b[step]"]),
        (replace(whole, state={**whole.state, "a": shard}), ["a[exp_avg]"]),
        (replace(whole, state={**whole.state, "c": whole.state["b"]}), ["c[exp_avg]", "c[step]"]),
    ):
        record = file_of(model(lab), optimizers=(seen,))
        assert subjects("SAVE-06", case(lab, record)) == broken


def test_a_step_count_may_be_a_number_in_the_file(lab: Lab) -> None:
    whole = optimizer(lab)
    entries = {**whole.state["a"], "step": ValueRecord("int", "3")}
    seen = replace(whole, state={**whole.state, "a": entries})
    assert subjects("SAVE-06", case(lab, file_of(model(lab), optimizers=(seen,)))) == []


def test_no_optimizer_in_the_file_is_not_covered(lab: Lab) -> None:
    with pytest.raises(NotCovered, match="OPT-01"):
        findings("SAVE-06", case(lab, file_of(model(lab))))


def saving(lab: Lab, **after: Any) -> RunEvidence:
    before = lab.snapshots("before save", **live(lab))
    return lab.run(
        "saving",
        {"before save": before, "after save": lab.snapshots("after save", **live(lab) | after)},
    )


def changes(lab: Lab) -> Mapping[str, tuple[dict[str, Any], list[str]]]:
    ema = {"a": lab.sharded([1.0, 2.0, 3.0])}
    weights = live(lab)["parameters"]
    lr = [GroupRecord(0, 0, ("a", "b"), {"lr": ValueRecord("float", "0.2")})]
    full = {"a": lab.sharded([1.0, 2.0, 3.0], replicate()), "b": weights["b"]}
    copies = {name: [replace(r, identity=77) for r in rs] for name, rs in weights.items()}
    return {
        "a weight": ({"parameters": {**weights, "b": lab.replicated([4.5])}}, ["b"]),
        "a buffer": ({"buffers": {"t": lab.plain([5.0], [6.0])}}, ["t"]),
        "a moment": ({"state": {"a": live(lab)["state"]["a"]}}, ["b[exp_avg]", "b[step]"]),
        "an average": ({"ema": ema}, ["a"]),
        "a counter": ({"step": 4}, ["global_step"]),
        "an lr": ({"groups": lr}, ["optimizer 0 group 0: lr"]),
        "a schedule": ({"schedulers": [{"n": ValueRecord("int", "1")}]}, ["scheduler 0: n"]),
        "a stream": (
            {"rng": [{"torch": "state 0"}, {"torch": "moved"}]},
            ["torch random stream"],
        ),
        "a layout": ({"parameters": full}, ["a"]),
        "objects": ({"parameters": copies}, ["a", "b", "a", "b"]),
    }


CHANGES = (
    *("a weight", "a buffer", "a moment", "an average", "a counter", "an lr"),
    *("a schedule", "a stream", "a layout", "objects"),
)


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_save_changed_is_found(lab: Lab, what: str) -> None:
    after, broken = changes(lab)[what]
    assert sorted(subjects("SAVE-07", lab.case(saving(lab, **after)))) == sorted(broken)


def test_a_save_that_changed_nothing_passes(lab: Lab) -> None:
    assert violations("SAVE-07", lab.case(saving(lab))) == []


def early(lab: Lab, state: Mapping[str, Any], **declared: Any) -> Case:
    moments = {
        "start": lab.snapshots(step=0),
        "after save": lab.snapshots(step=0, state=state),
        "after first step": lab.snapshots(step=1),
    }
    phases = ("start", "save", "train", "close")
    other = lab.run("uninterrupted", {"after first step": moments["after first step"]})
    run = lab.run("early", moments, phases=phases, facts={"saved": [True, True]})
    return lab.case(other, run, **declared)


def test_state_that_a_first_step_would_start_from(lab: Lab) -> None:
    zero, one = values(ValueRecord("int", "0")), lab.plain(1.0)
    moment = lab.sharded([0.0, 0.0, 0.0])
    assert subjects("SAVE-09", early(lab, {"w": {"step": zero, "exp_avg": moment}})) == []
    hidden = early(lab, {"w": {"step": one, "exp_avg": moment}})
    assert subjects("SAVE-09", hidden) == ["w[step]"]
    assert subjects("SAVE-09", early(lab, {"w": {"step": one}}, save_points="epoch_end")) == [
        "w[step]"
    ]


def test_zero_on_the_first_rank_is_not_zero_on_all(lab: Lab) -> None:
    moment = lab.sharded([0.0, 0.0, 7.0])
    assert subjects("SAVE-09", early(lab, {"w": {"exp_avg": moment}})) == ["w[exp_avg]"]


def test_bloat(lab: Lab) -> None:
    record = file_of(model(lab), storages=(("a", 4000, 40), ("b", 4000, 4000), ("c", 400, 4)))
    assert subjects("SAVE-10", case(lab, record)) == ["a"]
