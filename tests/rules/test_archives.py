"""COMPAT-07 and COMPAT-08 on evidence made by hand: archives, and what a load of them gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_cplife.evidence.golden import Manifest
from pytest_cplife.evidence.run import RunEvidence, Unanswered
from pytest_cplife.evidence.summary import digests
from pytest_cplife.rules.case import Case, NotCovered
from tests.evidence.archiving import manifest
from tests.rules.builders import VALUE, Lab, findings, measured, subjects, values, violations


def held(lab: Lab, **changes: Any) -> dict[str, Any]:
    """The state of a trainer."""
    return {
        "parameters": {"w": lab.sharded([1.0, 2.0, 3.0])},
        "buffers": {"t": lab.plain([5.0])},
        "persistent": ("w", "t"),
        "state": {"w": {"exp_avg": lab.sharded([6.0, 7.0, 8.0]), "n": values(VALUE("int", "3"))}},
        "ema": {"w": lab.sharded([9.0, 9.0, 9.0])},
        **changes,
    }


def recorded(lab: Lab, name: str = "one", **changes: Any) -> Manifest:
    state = lab.run("saving", {"m": lab.snapshots(**held(lab))}).at("m")
    known = {"digests": digests(state, lab.assembler), "counters": {"global_step": 3, "epoch": 0}}
    return manifest(name=name, **(known | changes))


def loaded(
    lab: Lab,
    *archives: Manifest,
    refused: Sequence[str] = ("", ""),
    intact: bool = True,
    **state: Any,
) -> RunEvidence:
    facts: dict[str, Sequence[Any]] = {
        "archives": [archives] * 2,
        "adapter": ["mymod:Adapter"] * 2,
    }
    for one in archives:
        facts[f"{one.name}: intact"] = [intact, True]
        facts[f"{one.name}: refused"] = refused
    moments = {one.name: lab.snapshots(**(held(lab) | state)) for one in archives}
    return lab.run("golden", moments, facts=facts)


def given_back(lab: Lab, **how: Any) -> Case:
    return lab.case(loaded(lab, recorded(lab), **how))


def test_what_is_given_back_whole_passes(lab: Lab) -> None:
    found = findings("COMPAT-07", given_back(lab))
    assert violations("COMPAT-07", given_back(lab)) == []
    assert any("5 compared" in one.what for one in measured(found))


def test_on_another_mesh_too(lab: Lab) -> None:
    archive, other = recorded(lab), lab.on("tp=2")
    whole = {"w": other.replicated([1.0, 2.0, 3.0])}
    assert subjects("COMPAT-07", other.case(loaded(other, archive, parameters=whole))) == []


@pytest.mark.parametrize(
    ("change", "subject", "observed"),
    [
        ({"parameters": {"w": [1.0, 2.0, 3.5]}}, "w", "another tensor"),
        ({"buffers": {"t": [6.0]}}, "t", "another tensor"),
        ({"ema": {"w": [9.0, 9.0, 9.5]}}, "w", "another tensor"),
        ({"ema": {}}, "w", "missing"),
        ({"buffers": {"t": [5.0], "u": [1.0]}, "persistent": ("w", "t", "u")}, "u", "present"),
    ],
)
def test_what_is_not_given_back(
    lab: Lab, change: dict[str, Any], subject: str, observed: str
) -> None:
    made = {
        what: {name: lab.plain(value) for name, value in table.items()}
        if isinstance(table, dict)
        else table
        for what, table in change.items()
    }
    found = [(v.subject, v.observed) for v in violations("COMPAT-07", given_back(lab, **made))]
    assert found == [(subject, observed)]


def test_optimizer_state_is_compared_as_value_and_tensor(lab: Lab) -> None:
    entries = {"exp_avg": values(VALUE("int", "0")), "n": values(VALUE("int", "4"))}
    found = violations("COMPAT-07", given_back(lab, state={"w": entries}))
    assert [(v.subject, v.expected, v.observed) for v in found] == [
        ("w[exp_avg]", "a tensor", "int 0"),
        ("w[n]", "int 3", "int 4"),
    ]


def test_counters(lab: Lab) -> None:
    (found,) = violations("COMPAT-07", given_back(lab, step=0))
    assert (found.subject, found.expected, found.observed) == ("global_step", "3", "0")
    assert found.ranks == (0, 1)


def test_one_rank_that_holds_something_else(lab: Lab) -> None:
    buffers = {"t": lab.other_bytes(lab.plain([5.0]), 1, [6.0])}
    (found,) = violations("COMPAT-07", given_back(lab, buffers=buffers))
    assert (found.subject, found.ranks) == ("t", (1,))


def test_a_refusal(lab: Lab) -> None:
    (found,) = violations("COMPAT-07", given_back(lab, refused=("", "KeyError: 'new'"), step=0))
    assert (found.subject, found.observed, found.ranks) == ("checkpoint", "KeyError: 'new'", (1,))
    assert found.moment == "golden one: after load"


def test_a_file_that_is_another_now_is_not_the_trainers_fault(lab: Lab) -> None:
    (found,) = violations("COMPAT-07", given_back(lab, intact=False, step=0))
    assert "changed or damaged" in found.observed


def test_no_archive_was_given(lab: Lab) -> None:
    run = lab.run("golden", absent={"archives": "no golden archives were given"})
    files = lab.run("files", facts={"structure": [{}] * 2})
    for rule in ("COMPAT-07", "COMPAT-08"):
        with pytest.raises(Unanswered) as caught:
            findings(rule, lab.case(run, files))
        assert caught.value.not_offered == "no golden archives were given"


def written(lab: Lab, today: dict[str, str], *archives: Manifest) -> Case:
    return lab.case(loaded(lab, *archives), lab.run("files", facts={"structure": [today] * 2}))


OLD, NEW = {"a": "mapping", "b": "int"}, {"a": "list", "c": "int"}


def test_a_format_that_is_the_newest_archives_passes(lab: Lab) -> None:
    archives = recorded(lab, "old", structure=OLD), recorded(lab, "new", structure=NEW)
    assert violations("COMPAT-08", written(lab, NEW, *archives)) == []


def test_a_new_format_without_an_archive(lab: Lab) -> None:
    found = violations("COMPAT-08", written(lab, NEW, recorded(lab, structure=OLD)))
    assert [(v.subject, v.expected, v.observed) for v in found] == [
        ("a", "mapping", "list"),
        ("b", "int", "not there"),
        ("c", "not there", "int"),
    ]
    assert all("--cplife-record-golden" in v.note and "torch 2.0" in v.note for v in found)


def test_the_archives_of_another_adapter_say_nothing_about_the_format(lab: Lab) -> None:
    other = recorded(lab, adapter="othermod:Adapter", structure=OLD)
    with pytest.raises(NotCovered, match="no golden archive of mymod:Adapter was given"):
        findings("COMPAT-08", written(lab, NEW, other))
