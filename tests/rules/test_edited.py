"""What became of edited files, on evidence made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pytest_cplife.evidence.filing import FileOptimizer
from pytest_cplife.evidence.records import GroupRecord, ValueRecord
from pytest_cplife.evidence.run import Unanswered
from pytest_cplife.rules.case import Case, NotCovered
from tests.rules.builders import Lab, file_of, subjects, violations


def state(lab: Lab, weight: Any = (1.0, 2.0, 3.0), decay: str = "0.1", **more: Any) -> Any:
    values = {"weight_decay": ValueRecord("float", decay)}
    return lab.snapshots(
        **{
            "parameters": {"w": lab.sharded(list(weight))},
            "state": {"w": {"m": lab.sharded([4.0, 5.0, 6.0])}},
            "groups": [GroupRecord(0, 0, ("w",), values)],
            **more,
        }
    )


def case(
    lab: Lab,
    run: str,
    edit: str,
    outcomes: Sequence[str] = ("", ""),
    after: Any = None,
    **facts: Any,
) -> Case:
    seen = state(lab)
    noted = {edit: list(outcomes)} | {key: [value] * 2 for key, value in facts.items()}
    return lab.case(
        lab.run("saving", {"before save": seen}),
        lab.run("resumed", {"after load": seen}),
        lab.run(run, {f"{edit}: after": after or seen}, facts=noted),
    )


RIGHT_OR_REFUSED = [
    ("COMPAT-09", "names in another order"),
    ("COMPAT-11", "another dtype"),
    ("COMPAT-13", "sharded dtensors"),
]


@pytest.mark.parametrize(("rule", "edit"), RIGHT_OR_REFUSED)
def test_right_or_refused_by_all(lab: Lab, rule: str, edit: str) -> None:
    assert subjects(rule, case(lab, "legacy", edit)) == []
    assert subjects(rule, case(lab, "legacy", edit, ("no", "no"))) == []
    assert subjects(rule, case(lab, "legacy", edit, ("no", ""))) == [edit]
    wrong = state(lab, (1.0, 2.0, 4.0))
    assert subjects(rule, case(lab, "legacy", edit, after=wrong)) == ["w"]
    wrong = state(lab, state={"w": {"m": lab.sharded([6.0, 5.0, 4.0])}})
    assert subjects(rule, case(lab, "legacy", edit, after=wrong)) == ["w[m]"]


def test_memory_order_has_to_load(lab: Lab) -> None:
    edit = "another memory order"
    assert subjects("COMPAT-10", case(lab, "legacy", edit)) == []
    assert subjects("COMPAT-10", case(lab, "legacy", edit, ("no", "no"))) == [edit]


def test_another_group_of_the_file_gives_its_values(lab: Lab) -> None:
    edit = "more param groups"
    key = f"options of {edit}"
    for decay, broken in (("0.2", []), ("0.1", ["w: weight_decay"])):
        options = {"w": {"weight_decay": ValueRecord("float", "0.2")}}
        given = case(lab, "legacy", edit, after=state(lab, decay=decay), **{key: options})
        given["legacy"].ranks[0].absent["fewer param groups"] = "one group"
        assert subjects("COMPAT-12", given) == broken * 2
    with pytest.raises(Unanswered):
        nothing = lab.run("legacy", absent={"more param groups": "x", "fewer param groups": "y"})
        violations("COMPAT-12", lab.case(given["saving"], nothing))


@pytest.mark.parametrize(
    ("outcomes", "left", "broken"),
    [
        (("no", "no"), (9.0, 9.0, 9.0), []),
        (("", ""), None, []),
        (("", ""), (0.0, 0.0, 0.0), []),
        (("", ""), (4.0, 5.0, 6.0), ["w[m]"]),
        (("no", ""), None, ["no state of one parameter"]),
    ],
)
def test_missing_state(lab: Lab, outcomes: Any, left: Any, broken: list[str]) -> None:
    edit = "no state of one parameter"
    table = {} if left is None else {"w": {"m": lab.sharded(list(left))}}
    after = state(lab, state=table)
    given = case(lab, "refusing", edit, outcomes, after, **{f"edited {edit}": "w"})
    assert subjects("OPT-11", given) == broken


@pytest.mark.parametrize(
    ("loaded", "broken"),
    [
        ([1.0, 2.0, 3.0], []),
        ([2.0, 3.0, 4.0], []),
        ([1.0, 2.0, 4.0], ["w"]),
    ],
    ids=["one", "the other", "a mixture"],
)
def test_ranks_with_two_files(lab: Lab, loaded: Any, broken: list[str]) -> None:
    edit = "another step on other ranks"
    names = {f"names of {edit}": ["w"]}
    after = state(lab, loaded)
    assert subjects("LOAD-15", case(lab, "refusing", edit, after=after, **names)) == broken
    assert subjects("LOAD-15", case(lab, "refusing", edit, ("no", "no"), **names)) == []
    assert subjects("LOAD-15", case(lab, "refusing", edit, ("no", ""), **names)) == [edit]


def test_replicas_of_two_files(lab: Lab) -> None:
    edit = "another step on other ranks"
    parted = lab.snapshots(parameters={"w": lab.plain([1.0, 2.0], [2.0, 3.0])})
    given = case(lab, "refusing", edit, after=parted, **{f"names of {edit}": ["w"]})
    assert subjects("LOAD-15", given) == ["w"]


def test_state_by_name(lab: Lab) -> None:
    def given(listed: bool, *keys: str) -> Case:
        optimizer = FileOptimizer({}, (GroupRecord(0, 0, keys, {}),), listed)
        file = file_of({"w": lab.plain(torch.ones(2))[0]}, optimizers=(optimizer,))
        return lab.case(lab.run("files", files={"saved": file}, ranks=1))

    assert subjects("SAVE-14", given(False, "a", "b")) == []
    assert subjects("SAVE-14", given(True, "0", "1")) == []
    assert subjects("SAVE-14", given(False, "0", "1")) == ["optimizer 0"]


def test_module_versions(lab: Lab) -> None:
    def given(versions: dict[str, int], **noted: int) -> Case:
        serial = lab.run("serial", facts={"versions": [versions]}, ranks=1)
        file = file_of({"w": lab.plain(torch.ones(2))[0]}, versions=noted)
        return lab.case(serial, lab.run("files", files={"saved": file}, ranks=1))

    assert subjects("SAVE-15", given({"norm": 2, "": 1}, norm=2)) == []
    assert subjects("SAVE-15", given({"norm": 2, "": 1}, norm=1)) == ["norm: version"]
    assert subjects("SAVE-15", given({"norm": 2, "": 1})) == ["norm: version"]
    with pytest.raises(NotCovered):
        violations("SAVE-15", given({"norm": 1}))
