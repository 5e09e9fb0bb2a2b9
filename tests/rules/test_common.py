"""The comparisons that most rules are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from pytest_cplife.evidence.records import Record, ValueRecord
from pytest_cplife.rules.common import compare, replicas_agree, same_keys, same_layout
from pytest_cplife.rules.model import Finding, Violation
from tests.evidence.layouts import partial, replicate, shard
from tests.rules.builders import Lab, measured, values


def compared(
    lab: Lab,
    expected: Mapping[str, Sequence[Record]],
    observed: Mapping[str, Sequence[Record]],
    noise: float = 0.0,
) -> list[Finding]:
    case = lab.case(noise={("end", name): noise for name in expected} if noise else None)
    return list(
        compare(case, lab.assembler, "weights", expected, observed, moment="m", noisy_at="end")
    )


def broken(found: Sequence[Finding]) -> list[Violation]:
    return [f for f in found if isinstance(f, Violation)]


def test_equal_tables_pass_and_say_how_much_was_compared(lab: Lab) -> None:
    table = {"a": lab.sharded([1.0, 2.0, 3.0]), "b": lab.plain(4.0)}
    found = compared(lab, table, dict(table))
    assert broken(found) == []
    assert [m.what for m in measured(found)] == ["weights, m (2 compared)"]


def test_key_sets_come_before_values(lab: Lab) -> None:
    one = lab.plain(1.0)
    found = broken(compared(lab, {"a": one, "b": one}, {"b": one, "c": one}))
    assert [(v.subject, v.expected, v.observed) for v in found] == [
        ("a", "present", "missing"),
        ("c", "absent", "present"),
    ]
    assert [v.subject for v in same_keys({"a": one}, {}, moment="m")] == ["a"]


@pytest.mark.parametrize(
    ("changed", "expected", "observed"),
    [
        (torch.ones(3, dtype=torch.float64), "dtype torch.float32", "dtype torch.float64"),
        (torch.ones(4), "shape (3,)", "shape (4,)"),
        (torch.ones(3, 1), "shape (3,)", "shape (3, 1)"),
    ],
)
def test_structure_comes_before_values(
    lab: Lab, changed: torch.Tensor, expected: str, observed: str
) -> None:
    (found,) = broken(
        compared(lab, {"a": lab.sharded(torch.ones(3))}, {"a": lab.sharded(changed)}, noise=9.0)
    )
    assert (found.expected, found.observed, found.difference) == (expected, observed, None)


def test_one_element_is_found_with_its_rank(lab: Lab) -> None:
    found = compared(lab, {"a": lab.sharded([1.0, 2.0, 3.0])}, {"a": lab.sharded([1.0, 2.0, 3.5])})
    (violation,) = broken(found)
    assert violation.observed == "1 of 3 elements differ"
    assert (violation.ranks, violation.difference, violation.budget) == ((1,), 0.5, 0.0)
    assert measured(found)[0].difference == 0.5


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([0.0], [-0.0]),
        ([1.0], [math.nan]),
        ([math.inf], [-math.inf]),
        ([1.0], [1.0 + 2**-23]),
        ([2**60], [2**60 + 1]),
    ],
)
def test_nothing_but_bits_is_equal(lab: Lab, one: list[float], other: list[float]) -> None:
    (violation,) = broken(compared(lab, {"a": lab.plain(one)}, {"a": lab.plain(other)}))
    assert violation.observed == "1 of 1 elements differ"
    assert violation.expected == "equal bit for bit"


def test_nans_are_equal_where_their_bits_are(lab: Lab) -> None:
    table = {"a": lab.plain([math.nan, math.inf])}
    assert broken(compared(lab, table, {"a": lab.plain([math.nan, math.inf])})) == []


@pytest.mark.parametrize(("budget", "broke"), [(0.25, False), (0.1, True)])
def test_noise_is_a_budget(lab: Lab, budget: float, broke: bool) -> None:
    """The factor is 4: measured noise of 0.25 allows a difference of 1."""
    found = compared(lab, {"a": lab.sharded([1.0, 2.0])}, {"a": lab.sharded([1.0, 3.0])}, budget)
    assert bool(broken(found)) is broke
    assert [m.difference for m in measured(found)] == [1.0]
    assert measured(found)[0].budget == 4 * budget


def test_no_noise_allows_for_what_is_not_finite(lab: Lab) -> None:
    a, b = {"a": lab.plain([1.0])}, {"a": lab.plain([math.nan])}
    assert broken(compared(lab, a, b, noise=1e300))


def test_each_rank_counts_not_only_the_first_replica(lab: Lab) -> None:
    saved = lab.replicated([1.0, 2.0])
    (violation,) = broken(compared(lab, {"a": saved}, {"a": lab.other_bytes(saved, 1, [1.0, 9.0])}))
    assert violation.ranks == (1,)
    assert "not on every rank" in violation.observed
    (violation,) = broken(compared(lab, {"a": lab.plain(1.0, 1.0)}, {"a": lab.plain(1.0, 2.0)}))
    assert violation.ranks == (1,)


@pytest.mark.parametrize("first", [1.0, 1.125])
@pytest.mark.parametrize(("second", "broke"), [(1.125, False), (9.0, True)])
def test_noise_is_a_budget_for_every_replica(
    lab: Lab, first: float, second: float, broke: bool
) -> None:
    """Whether or not the first replica happens to be equal."""
    saved = lab.replicated([1.0, 2.0])
    seen = lab.other_bytes(lab.replicated([first, 2.0]), 1, [second, 2.0])
    found = broken(compared(lab, {"a": saved}, {"a": seen}, noise=0.25))
    assert [v.ranks for v in found] == ([(1,)] if broke else [])


def test_between_topologies_full_tensors_are_compared(lab: Lab) -> None:
    whole = torch.arange(10.0).reshape(5, 2)
    one, other = lab.sharded(whole), lab.on("dp=2,tp=2").sharded(whole, shard(1), shard(0))
    assert broken(compared(lab, {"a": one}, {"a": other})) == []
    moved = lab.on("dp=2,tp=2").sharded(whole + 1, shard(1), shard(0))
    (violation,) = broken(compared(lab, {"a": one}, {"a": moved}))
    assert violation.ranks == ()
    assert broken(compared(lab, {"a": one}, {"a": lab.on("dp=1").plain(whole)})) == []


def test_parts_that_do_not_fit_are_a_violation(lab: Lab) -> None:
    good = lab.sharded([1.0, 2.0, 3.0])
    bad = [good[0], replace(good[1], shape=(4,))]
    (violation,) = broken(compared(lab, {"a": good}, {"a": bad}))
    assert violation.observed == "shape is [3] on rank 0 but [4] on rank 1"


def test_values_are_compared_on_every_rank(lab: Lab) -> None:
    three, four = ValueRecord("int", "3"), ValueRecord("int", "4")
    (violation,) = broken(compared(lab, {"n": values(three)}, {"n": [three, four]}))
    assert (violation.expected, violation.observed, violation.ranks) == ("3 (int)", "4 (int)", (1,))
    # On another mesh there are other ranks, and each has to have the one value.
    assert broken(compared(lab, {"n": [three]}, {"n": values(three, 3)})) == []
    (violation,) = broken(compared(lab, {"n": [three]}, {"n": [three, three, four]}))
    assert violation.ranks == (2,)
    other_type = ValueRecord("float", "3")
    assert broken(compared(lab, {"n": values(three)}, {"n": values(other_type)}))


def test_a_value_is_no_tensor(lab: Lab) -> None:
    (violation,) = broken(
        compared(lab, {"n": lab.plain(3.0)}, {"n": values(ValueRecord("float", "3.0"))})
    )
    assert violation.expected == "Tensor () torch.float32"
    assert violation.observed == "3.0 (float)"


def test_replicas(lab: Lab) -> None:
    good = lab.replicated([1.0, 2.0])
    odd = lab.other_bytes(good, 1, [1.0, -2.0])
    assert list(replicas_agree({"a": good}, moment="m")) == []
    (violation,) = replicas_agree({"a": odd, "b": good}, moment="m")
    assert (violation.subject, violation.ranks) == ("a", (1,))
    assert violation.expected == "the same bytes on ranks 0, 1"
    # Shards differ by design; plain tensors are replicas; parts of a sum are each rank's own.
    shards = lab.sharded([1.0, 2.0])
    assert list(replicas_agree({"a": shards}, moment="m")) == []
    assert len(list(replicas_agree({"a": lab.plain(1.0, 2.0)}, moment="m"))) == 1
    sums = [replace(r, placements=(partial(),)) for r in odd]
    assert list(replicas_agree({"a": sums}, moment="m")) == []


@pytest.mark.parametrize("what", ["kind", "placements", "mesh", "shape", "device"])
def test_layouts(lab: Lab, what: str) -> None:
    before = lab.sharded([1.0, 2.0])
    other = {
        "kind": "plain",
        "placements": (replicate(),),
        "mesh": lab.sharded([1.0, 2.0], spec="tp=2")[1].mesh,
        "shape": (3,),
        "device": "cuda:0",
    }
    after = [before[0], replace(before[1], **{what: other[what]})]  # type: ignore[arg-type]
    (violation,) = same_layout({"a": before}, {"a": after}, moment="m")
    assert violation.ranks == (1,)
    assert violation.expected != violation.observed
    assert list(same_layout({"a": before}, {"a": list(before)}, moment="m")) == []
