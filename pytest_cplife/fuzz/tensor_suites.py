"""The suites that need no trainer, only tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_cplife.fuzz import trees
from pytest_cplife.fuzz.roundtrip import STRIDE, RoundTrip, gathered_dtypes, try_round_trip
from pytest_cplife.fuzz.smaller import smaller_trees
from pytest_cplife.fuzz.stage import FuzzStage
from pytest_cplife.fuzz.tensors import PLAIN_LAYOUTS, TensorSpec
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import Violation
from pytest_cplife.strategies import dtensor_trees, tensor_specs


class RoundTripSuite:
    """`to_plain` and `realign` of an adapter, on trees of tensors of every geometry.

    All but the stride that `realign` gives is looked at here; that is :class:`StrideSuite`'s, so
    that whoever breaks it and nothing else fails there and nowhere else.
    """

    name = "round trip"
    cost = 1

    def __init__(self, stage: FuzzStage, dtypes: Sequence[str] | None = None) -> None:
        """
        Args:
            dtypes: those to draw from; None takes the ones that the backend can gather, because no
                adapter is to blame for the others (gloo has no int16 and no fp8).
        """
        self.stage = stage
        self._dtypes = None if dtypes is None else tuple(dtypes)

    @property
    def dtypes(self) -> tuple[str, ...]:
        if self._dtypes is None:
            [self._dtypes, *_] = self.stage.run(self.stage.meshes[-1], gathered_dtypes)
        return self._dtypes

    def examples(self) -> SearchStrategy[RoundTrip]:
        return st.sampled_from(list(self.stage.meshes)).flatmap(self._on)

    def _on(self, spec: MeshSpec) -> SearchStrategy[RoundTrip]:
        leaves = tensor_specs(spec, dtype_names=self.dtypes, layouts=PLAIN_LAYOUTS)
        return st.builds(RoundTrip, st.just(spec), dtensor_trees(spec, leaves=leaves))

    def check(self, example: RoundTrip) -> Sequence[Violation] | None:
        return [violation for violation in self.tried(example) if violation.moment != STRIDE]

    def tried(self, example: RoundTrip) -> Sequence[Violation]:
        """All that is wrong with an example."""
        stage = self.stage
        return stage.judge(example.mesh, try_round_trip, example, stage.adapter, stage.new_folder())

    def smaller(self, example: RoundTrip) -> Iterator[RoundTrip]:
        for spec in self.stage.meshes:
            if (spec.world_size, len(spec.dims)) < (
                example.mesh.world_size,
                len(example.mesh.dims),
            ):
                yield RoundTrip(spec, _on_fewer(example.tree, len(spec.dims)))
        for tree in smaller_trees(example.tree):
            yield replace(example, tree=tree)

    def show(self, example: RoundTrip) -> str:
        return f"mesh {example.mesh}\n{trees.show(example.tree)}"

    def to_json(self, example: RoundTrip) -> dict[str, Any]:
        return {"mesh": example.mesh.option, "tree": trees.to_json(example.tree)}

    def from_json(self, data: dict[str, Any]) -> RoundTrip:
        return RoundTrip(MeshSpec.parse(data["mesh"]), trees.from_json(data["tree"]))


class StrideSuite(RoundTripSuite):
    """The stride that `realign` gives, on the same trees."""

    name = "strides"

    def check(self, example: RoundTrip) -> Sequence[Violation] | None:
        violations = self.tried(example)
        strides = [violation for violation in violations if violation.moment == STRIDE]
        # Where something else went wrong the strides may never have been looked at.
        return strides if strides or not violations else None


def _on_fewer(tree: trees.Tree, dims: int) -> trees.Tree:
    """The tree on a mesh of `dims` dimensions: placements on the others are dropped."""
    if isinstance(tree, trees.Branch):
        return replace(tree, children=tuple(_on_fewer(child, dims) for child in tree.children))
    if isinstance(tree, TensorSpec) and tree.placements is not None:
        kept = tuple(
            text.partition(",")[0].rstrip(")") + ")" if "sf=" in text else text
            for text in tree.placements[:dims]
        )
        return replace(tree, placements=kept)
    return tree
