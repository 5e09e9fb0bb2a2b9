"""Optimizers that hold flattened parameters of their own, and what is not taken for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_cplife.evidence.records import GroupRecord, stranger, stranger_shape
from pytest_cplife.evidence.run import Moment
from pytest_cplife.rules.grad_parity import _dtypes
from pytest_cplife.rules.param_identity import holds_flattened
from tests.rules.builders import Lab


def group(*names: str) -> GroupRecord:
    return GroupRecord(0, 0, names, {})


@pytest.mark.parametrize(
    ("itself", "names", "flattened"),
    [
        (True, ["?(7,)"], True),
        (True, ["?(7,)", "w"], False),
        (True, [], False),
        (False, ["?(7,)"], False),
    ],
    ids=["zero", "some live", "empty", "nothing said"],
)
def test_what_counts_as_flattened(
    lab: Lab, itself: bool, names: list[str], flattened: bool
) -> None:
    seen = lab.snapshots(state={}, groups=[group(*names)])
    ranks = tuple(replace(snapshot, names_itself=itself) for snapshot in seen)
    assert holds_flattened(Moment("uninterrupted", "start", ranks)) is flattened


def test_names_of_strangers() -> None:
    assert stranger_shape(stranger((761,))) == "(761,)"
    assert stranger_shape("blocks.0.weight") == ""


def test_moments_of_a_name_that_the_model_lacks_are_another_rules_to_tell(lab: Lab) -> None:
    seen = Moment(
        "parity", "after first step", lab.snapshots(parameters={"a": lab.replicated(1.0)})
    )
    assert _dtypes(seen, ["a[exp_avg]", "gone[exp_avg]"]) == {"a[exp_avg]": "torch.float32"}
