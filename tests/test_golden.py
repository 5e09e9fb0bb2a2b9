"""Healthy trainers and golden archives of their own: nothing is told that is not so."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pytest_cplife.selftest.bench import Bench

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Outcome
from pytest_cplife.rules.registry import get_rule

HEALTHY = (
    ("pytest_cplife.reference_impl:Adapter", "fsdp=2,tp=2"),
    ("pytest_cplife.selftest.trainers.bf16_master:Adapter", "fsdp=2"),
    ("pytest_cplife.selftest.trainers.epoch_end:Adapter", "fsdp=2"),
)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


@pytest.mark.parametrize(("ref", "mesh"), HEALTHY)
def test_an_archive_of_one_rank_loads_on_any_mesh(bench: Bench, ref: str, mesh: str) -> None:
    with bench.session(ref, earlier=ref) as judge:
        verdicts = [
            judge.judge(get_rule(rule), MeshSpec.parse(mesh)) for rule in ("COMPAT-07", "COMPAT-08")
        ]
    assert [(v.outcome, v.violations) for v in verdicts] == [(Outcome.PASSED, ())] * 2
    counts = [re.search(r"\((\d+)", one.what) for v in verdicts for one in v.measurements]
    assert [int(count[1]) > 10 for count in counts if count] == [True, True]
