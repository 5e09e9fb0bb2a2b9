"""Suite "moves": what torch itself does with one tensor, against the oracle.

Four operations: gather it (`DTensor.full_tensor`), cut it (`distribute_tensor`), lay it out anew
(`DTensor.redistribute`), and save it in one layout to load it in another (`dcp.save`, `dcp.load`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.tensor import DTensor, distribute_tensor

from pytest_cplife.fuzz.build import build_tensor, torch_placement
from pytest_cplife.fuzz.ranks import Reports, guarded
from pytest_cplife.fuzz.roundtrip import check_tensor
from pytest_cplife.fuzz.smaller import smaller_tensors
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.tensors import DTYPES, PLAIN_LAYOUTS, TensorSpec
from pytest_cplife.fuzz.values import full_bytes
from pytest_cplife.launchers.base import Rank
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Violation
from pytest_cplife.strategies import placements, tensor_specs

OPERATIONS = ("full_tensor", "distribute_tensor", "redistribute", "dcp")


@dataclass(frozen=True, slots=True)
class Move:
    """One tensor, and the placements that it is brought to."""

    mesh: MeshSpec
    operation: str
    tensor: TensorSpec
    target: tuple[str, ...]


def try_move(rank: Rank, move: Move, folder: Path) -> Reports:
    """On a rank: what is wrong with the result."""
    return guarded(rank, folder, lambda: list(_move(rank, move, folder)))


def _move(rank: Rank, move: Move, folder: Path) -> Iterator[Violation]:
    mesh, spec = rank.mesh(move.mesh), move.tensor
    source = build_tensor(spec, mesh)
    there = [torch_placement(text) for text in move.target]
    # Whatever the layout in memory was, nothing is promised of the result's stride.
    moved = replace(spec, placements=move.target)
    whole = full_bytes(spec, tuple(mesh.shape))
    result: Any
    if move.operation == "full_tensor":
        assert isinstance(source, DTensor)
        result, moved = source.full_tensor(), replace(moved, placements=spec.placements)
    elif move.operation == "distribute_tensor":
        result = distribute_tensor(source, mesh, there)
    elif move.operation == "redistribute":
        assert isinstance(source, DTensor)
        result = source.redistribute(placements=there)
    else:
        result = build_tensor(replace(moved, seed=spec.seed + 5), mesh)
        state_dict_saver.save({"it": source}, checkpoint_id=folder / "saved")
        state_dict_loader.load({"it": result}, checkpoint_id=folder / "saved")
    sharded = move.operation != "full_tensor"
    found = check_tensor(moved, result, mesh, move.operation, "it", sharded=sharded, whole=whole)
    for violation in found:
        if not violation.moment.endswith(": stride"):
            yield violation


class MoveSuite:
    """One operation of torch on tensors of every geometry."""

    cost = 1

    def __init__(
        self,
        stage: FuzzStage,
        operation: str,
        *,
        dtypes: Sequence[str] = DTYPES,
        partial: Sequence[str] = (),
        strided: bool = True,
    ) -> None:
        self.stage = stage
        self.operation = operation
        self.name = f"moves {operation}"
        self.dtypes = tuple(dtypes)
        self.partial = tuple(partial)
        self.strided = strided

    def examples(self) -> SearchStrategy[Move]:
        return st.sampled_from(list(self.stage.meshes)).flatmap(self._on)

    @staticmethod
    def _target(spec: MeshSpec, tensor: TensorSpec, strided: bool) -> SearchStrategy[Any]:
        return placements(spec, len(tensor.shape), strided=strided)

    def _on(self, spec: MeshSpec) -> SearchStrategy[Move]:
        tensors = tensor_specs(
            spec,
            plain=self.operation == "distribute_tensor",
            dtype_names=self.dtypes,
            partial=self.partial if self.operation in ("full_tensor", "redistribute") else (),
            strided=self.strided,
            layouts=PLAIN_LAYOUTS,
        )
        return tensors.flatmap(
            lambda tensor: st.builds(
                Move,
                st.just(spec),
                st.just(self.operation),
                st.just(tensor),
                self._target(spec, tensor, self.strided),
            )
        )

    def check(self, example: Move) -> Sequence[Violation] | None:
        return self.stage.judge(example.mesh, try_move, example, self.stage.new_folder())

    def smaller(self, example: Move) -> Iterator[Move]:
        # The target's placements count the tensor's dimensions, so those stay.
        for tensor in smaller_tensors(example.tensor):
            if len(tensor.shape) == len(example.tensor.shape):
                yield replace(example, tensor=tensor)
        target = TensorSpec(example.tensor.shape, placements=example.target)
        for simpler in smaller_tensors(target):
            if simpler.shape == target.shape and simpler.placements is not None:
                yield replace(example, target=simpler.placements)

    def show(self, example: Move) -> str:
        target = "" if self.operation == "full_tensor" else f" to [{', '.join(example.target)}]"
        return f"mesh {example.mesh}\n{example.operation} of {example.tensor}{target}"

    def to_json(self, example: Move) -> dict[str, Any]:
        return {
            "mesh": example.mesh.option,
            "operation": example.operation,
            "tensor": example.tensor.to_json(),
            "target": list(example.target),
        }

    def from_json(self, data: dict[str, Any]) -> Move:
        tensor = TensorSpec.from_json(data["tensor"])
        mesh = MeshSpec.parse(data["mesh"])
        return Move(mesh, data["operation"], tensor, tuple(data["target"]))
