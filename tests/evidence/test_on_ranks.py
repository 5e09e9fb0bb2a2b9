"""The oracle against torch itself: real DTensors on real process groups."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_cplife.evidence.assemble import Assembler, geometry_problem, replica_sets
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Launcher
from tests.evidence import ranks

SHAPES = [(7, 5), (4, 4), (3, 2), (1, 6), (0, 3), (2, 3, 5)]


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = make_launcher("processes", device="cpu")
    yield launcher
    launcher.close()


@pytest.fixture
def assembler(tmp_path: Path) -> Assembler:
    return Assembler(TensorStore(tmp_path))


@pytest.mark.parametrize("spec", ["dp=2", "dp=3", "dp=2,tp=2"])
def test_what_torch_shards_is_put_together(
    launcher: Launcher, assembler: Assembler, tmp_path: Path, spec: str
) -> None:
    dims = spec.count("=")
    layouts = [
        (shape, names)
        for shape in SHAPES
        for names in itertools.product((*range(len(shape)), "R"), repeat=dims)
    ]
    layouts.append(((), ("R",) * dims))
    size = len(list(itertools.product(*(range(int(p[-1])) for p in spec.split(",")))))
    per_rank = launcher.world(size).run(ranks.distributed, spec, layouts, tmp_path)
    for (shape, names), *seen in zip(layouts, *per_rank, strict=True):
        records = [record for record, _ in seen]
        assert geometry_problem(records) == "", (shape, names)
        assert torch.equal(assembler.full(records), ranks.whole(shape)), (shape, names)
        for record, local in seen:
            assert (
                assembler.store.get(record.digest, record.dtype, record.local_shape).tolist()
                == local
            )
        # Replicas hold the same, and there are as many sets of them as there are shards.
        for group in replica_sets(records):
            assert len({records[rank].digest for rank in group}) == 1
        counts = [int(part[-1]) for part in spec.split(",")]
        shards = [c for c, name in zip(counts, names, strict=True) if name != "R"]
        assert len(replica_sets(records)) == int(torch.tensor([1, *shards]).prod())


def test_partial_sums(launcher: Launcher, assembler: Assembler, tmp_path: Path) -> None:
    seen = launcher.world(4).run(ranks.summed, "dp=2,tp=2", tmp_path)
    records = [record for record, _ in seen]
    assert [str(p) for p in records[0].placements] == ["P(sum)", "R"]
    assert assembler.full(records).tolist() == seen[0][1]


def test_a_gather_in_flight_is_waited_for(launcher: Launcher, tmp_path: Path) -> None:
    store = TensorStore(tmp_path)
    for record, expected in launcher.world(2).run(ranks.in_flight, "dp=2", tmp_path):
        assert record.kind == "dtensor"
        assert record.storage_bytes >= 20
        assert store.get(record.digest, record.dtype, (5,)).tolist() == expected


@pytest.mark.parametrize(
    ("spec", "strided"), [("dp=2", False), ("dp=2,tp=2", True), ("rep=2,dp=2", False)]
)
def test_fsdp_and_tensor_parallelism(
    launcher: Launcher, assembler: Assembler, tmp_path: Path, spec: str, strided: bool
) -> None:
    """FSDP2 over tensor parallelism cuts from right to left (`_StridedShard`)."""
    size = 2 if spec == "dp=2" else 4
    per_rank = launcher.world(size).run(ranks.fsdp, spec, tmp_path)
    kinds = set()
    for name, parameter in ranks.Block().named_parameters():
        records = [table[name] for table in per_rank]
        kinds |= {p.kind for record in records for p in record.placements}
        assert {record.kind for record in records} == {"dtensor"}
        assert geometry_problem(records) == "", name
        assert torch.equal(assembler.full(records), parameter.detach()), name
    assert ("strided" in kinds) is strided


def test_a_placeholder_that_is_called_first_breaks_nothing(launcher: Launcher) -> None:
    seen = launcher.world(2).run(ranks.placeholder_first, "dp=2")
    for calls, output in seen:
        assert calls["later"].startswith("NotImplementedError")
        assert output == seen[0][1]


def test_a_sharded_run_is_looked_at(
    launcher: Launcher, assembler: Assembler, tmp_path: Path
) -> None:
    seen = launcher.world(2).run(ranks.observed, "dp=2", tmp_path)
    tables: list[Any] = [snapshot for snapshot, _, _ in seen]
    assert all(same for _, _, same in seen)
    for name, record in tables[0].parameters.items():
        parts = [record, tables[1].parameters[name]]
        assert record.kind == "dtensor"
        assert record.mesh.names == ("dp",)
        assert [p.mesh.coordinate for p in parts] == [(0,), (1,)]
        if name.startswith("later"):
            continue
        moments = [table.optimizer_state[name]["exp_avg"] for table in tables]
        assert isinstance(moments[0], TensorRecord)
        assert moments[0].layout() == record.layout()
        assert assembler.full(moments).shape == record.shape
        # Gradients are recorded at the first step, with the parameter's own layout.
        (first,), (second,) = (steps for _, steps, _ in seen)
        gradients = [step.gradients[name] for step in (first, second)]
        assert gradients[0].layout() == record.layout()
        assert assembler.full(gradients).abs().sum() >= 0
    assert "later.weight" in seen[0][1][0].without_gradient
