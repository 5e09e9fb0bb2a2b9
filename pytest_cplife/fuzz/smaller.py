"""Simpler neighbours of an example, for the last steps of shrinking.

Hypothesis shrinks the choices that an example was drawn from and stops where simpler means
differently drawn (a tensor on its own in place of the second of two). These steps are about the
example itself, and the same with every version of hypothesis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pytest_cplife.fuzz.plans import READS, SAVES, Plan, Step
from pytest_cplife.fuzz.tensors import DTYPES, PLAIN_LAYOUTS, VALUES, TensorSpec
from pytest_cplife.fuzz.trees import Branch, Leaf, Tree


def smaller_trees(tree: Tree) -> Iterator[Tree]:
    """Trees with less in them than `tree`, the smallest first."""
    if isinstance(tree, TensorSpec):
        yield from smaller_tensors(tree)
        return
    if isinstance(tree, Leaf):
        if tree.value is not None:
            yield Leaf()
        return
    yield from tree.children
    for dtype in DTYPES:
        yield _all_of(tree, dtype)
    fixed = tree.kind in ("named", "box")
    if not fixed:
        for index in range(len(tree.children)):
            yield _without(tree, index)
    for index, child in enumerate(tree.children):
        for simpler in smaller_trees(child):
            children = (*tree.children[:index], simpler, *tree.children[index + 1 :])
            yield replace(tree, children=children)


def _all_of(tree: Tree, dtype: str) -> Tree:
    """All tensors of one dtype, where they have to be alike."""
    if isinstance(tree, Branch):
        return replace(tree, children=tuple(_all_of(child, dtype) for child in tree.children))
    simpler = isinstance(tree, TensorSpec) and dtype in _before(tree.dtype, DTYPES)
    return replace(tree, dtype=dtype) if simpler and isinstance(tree, TensorSpec) else tree


def _without(branch: Branch, index: int) -> Branch:
    children = branch.children[:index] + branch.children[index + 1 :]
    return replace(branch, children=children, keys=branch.keys[:index] + branch.keys[index + 1 :])


def smaller_tensors(spec: TensorSpec) -> Iterator[TensorSpec]:
    """Tensors that are simpler than `spec` in one respect."""
    for dim in range(len(spec.shape)):
        yield from _without_dim(spec, dim)
        if spec.placements is None and spec.layout != "contiguous":
            # With fewer dimensions it takes another layout to lie in memory otherwise.
            for layout in PLAIN_LAYOUTS:
                yield from _without_dim(replace(spec, layout=layout), dim)
    for dim, size in enumerate(spec.shape):
        for less in sorted({0, 1, 2, size // 2, size - 1}):
            if 0 <= less < size:
                shape = (*spec.shape[:dim], less, *spec.shape[dim + 1 :])
                # The one value that matters may be another one's neighbour.
                for seed in {spec.seed, *(range(4) if spec.values == "special" else ())}:
                    yield replace(spec, shape=shape, seed=seed)
    for dtype in _before(spec.dtype, DTYPES):
        yield replace(spec, dtype=dtype)
    for layout in _before(spec.layout, PLAIN_LAYOUTS):
        yield replace(spec, layout=layout)
    for values in _before(spec.values, VALUES):
        yield replace(spec, values=values)
    for seed in range(spec.seed):
        yield replace(spec, seed=seed)
    for index, place in enumerate(spec.placements or ()):
        # A strided shard to the left counts the shards to its right; that one has to go first.
        if place != "R" and not _counted(spec, index):
            yield replace(spec, placements=_put(spec, index, "R"))
        if "sf=" in place:
            yield replace(spec, placements=_put(spec, index, f"{place.partition(',')[0]})"))


def _before(name: str, order: tuple[str, ...]) -> tuple[str, ...]:
    return order[: order.index(name)]


def _put(spec: TensorSpec, index: int, place: str) -> tuple[str, ...]:
    places = list(spec.placements or ())
    places[index] = place
    return tuple(places)


def _counted(spec: TensorSpec, index: int) -> bool:
    records = spec.records
    return any(r.kind == "strided" and r.dim == records[index].dim for r in records[:index])


def _without_dim(spec: TensorSpec, dim: int) -> Iterator[TensorSpec]:
    shape = (*spec.shape[:dim], *spec.shape[dim + 1 :])
    if spec.placements is None:
        yield replace(spec, shape=shape)
        return
    if any(r.kind in ("shard", "strided") and r.dim == dim for r in spec.records):
        return
    places = tuple(
        text.replace(f"({record.dim}", f"({record.dim - 1}")
        if record.kind in ("shard", "strided") and record.dim > dim
        else text
        for text, record in zip(spec.placements, spec.records, strict=True)
    )
    yield replace(spec, shape=shape, placements=places)


def smaller_plans(plan: Plan) -> Iterator[Plan]:
    """Plans with a step left out (and what needs it), or with less training."""
    if len(plan.steps) > 3:
        yield replace(plan, steps=plan.steps[: len(plan.steps) // 2])
    for index, step in reversed(list(enumerate(plan.steps))):
        rest = [*plan.steps[:index], *plan.steps[index + 1 :]]
        if step.operation in SAVES:
            rest = [s for s in rest if s.operation not in READS or s.slot != step.slot]
        yield replace(plan, steps=tuple(rest))
    for index, step in enumerate(plan.steps):
        if step.operation == "train" and step.count > 1:
            yield _with(plan, index, replace(step, count=1))
        if step.rank:
            yield _with(plan, index, replace(step, rank=0))


def _with(plan: Plan, index: int, step: Step) -> Plan:
    return replace(plan, steps=(*plan.steps[:index], step, *plan.steps[index + 1 :]))
