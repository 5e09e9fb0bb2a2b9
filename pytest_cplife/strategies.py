"""Hypothesis strategies for sharded tensors, meshes and lifecycles, for anybody's tests.

A DTensor exists only on the ranks of a live mesh, and a test that drives ranks runs outside them.
So the strategies draw *descriptions*: immutable values that can be printed, compared, written as
JSON and sent to a rank, where :func:`~pytest_cplife.fuzz.build.build` makes them real without
communication::

    from hypothesis import given, strategies as st
    from pytest_cplife.fuzz.build import build
    from pytest_cplife.strategies import dtensor_trees, mesh_specs

    @given(st.data())
    def test_gathering(cplife_world, data):
        spec = data.draw(mesh_specs(max_world_size=4))
        tree = data.draw(dtensor_trees(spec))
        cplife_world(spec.world_size).run(check_on_rank, spec, tree)

Everything shrinks towards little: one rank, replicated, float32, few elements, one tensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_cplife.fuzz.plans import OPERATIONS, SAVES, Plan, Step
from pytest_cplife.fuzz.tensors import DTYPES, PLAIN_LAYOUTS, SHARDED_LAYOUTS
from pytest_cplife.fuzz.tensors import VALUES as VALUES
from pytest_cplife.fuzz.tensors import TensorSpec as TensorSpec
from pytest_cplife.fuzz.trees import CONTAINERS, Branch, Leaf, Tree
from pytest_cplife.mesh import MeshSpec

__all__ = [
    "dtensor_trees",
    "dtypes",
    "fills",
    "global_shapes",
    "mesh_specs",
    "placements",
    "save_load_plans",
    "tensor_specs",
]


def mesh_specs(
    *,
    max_world_size: int = 4,
    min_world_size: int = 1,
    max_dims: int = 2,
    names: Sequence[str] = ("dp", "cp", "tp"),
) -> SearchStrategy[MeshSpec]:
    """Meshes of every factorisation of every world size in range, small and flat ones first.

    Args:
        names: names of the mesh dimensions, given out from the left.
    """
    specs = [
        MeshSpec(tuple(zip(names, shape, strict=False)))
        for size in range(min_world_size, max_world_size + 1)
        for dims in range(1, min(max_dims, len(names)) + 1)
        for shape in itertools.product(range(1, size + 1), repeat=dims)
        if math.prod(shape) == size
    ]
    return st.sampled_from(specs)


@st.composite
def placements(
    draw: st.DrawFn,
    spec: MeshSpec,
    ndim: int,
    *,
    partial: Sequence[str] = (),
    strided: bool = True,
) -> tuple[str, ...]:
    """A placement per dimension of the mesh `spec`, for a tensor of `ndim` dimensions.

    Texts as :func:`~pytest_cplife.fuzz.tensors.parse_placement` reads them.

    Args:
        partial: the reductions (of `REDUCE_OPS`) that a Partial placement may wait for; all
            Partial placements of one tensor wait for the same one.
        strided: also draw strided shards where mesh dimensions share a tensor dimension.
    """
    shards = [f"S({dim})" for dim in range(ndim)]
    waiting = [f"P({draw(st.sampled_from(list(partial)))})"] if partial else []
    chosen: list[str] = []
    for _ in spec.shape:
        # Mesh dimensions that share a tensor dimension are where most goes wrong.
        again = bool(chosen) and draw(st.booleans())
        chosen.append(chosen[-1] if again else draw(st.sampled_from(["R", *shards, *waiting])))
    if strided:
        for i, text in enumerate(chosen):
            right = [j for j in range(i + 1, len(chosen)) if chosen[j] == text]
            # FSDP2 over TP: the left dimension cuts what the right ones have left over.
            if text.startswith("S") and right and draw(st.booleans()):
                factor = math.prod(spec.shape[j] for j in right)
                chosen[i] = f"{text[:-1]},sf={factor})"
    return tuple(chosen)


def global_shapes(
    spec: MeshSpec, *, min_ndim: int = 0, max_ndim: int = 3, large: int = 67
) -> SearchStrategy[tuple[int, ...]]:
    """Shapes that are awkward for the mesh `spec`.

    Sizes around multiples of the world size (dividing, not dividing, fewer than ranks), 1 and 0,
    a large first dimension now and then, and 0-d.
    """
    sizes = list(range(2 * spec.world_size + 2))
    # One draw per size, whatever it is, so that a large one shrinks to a small one.
    first, rest = st.sampled_from([*sizes, large - 2, large]), st.sampled_from(sizes)
    return st.integers(min_ndim, max_ndim).flatmap(
        lambda ndim: st.tuples(*([first] if ndim else []), *[rest] * (ndim - 1))
    )


def dtypes(*, only: Sequence[str] = DTYPES) -> SearchStrategy[str]:
    """Names of dtypes, without ``torch.``: float, bf16, fp8, integer, bool and complex ones."""
    return st.sampled_from(list(only))


def fills() -> SearchStrategy[str]:
    """How a tensor is filled: counted, with the dtype's edge cases, or with any bits."""
    return st.sampled_from(VALUES)


@st.composite
def tensor_specs(
    draw: st.DrawFn,
    spec: MeshSpec,
    *,
    plain: bool | None = None,
    partial: Sequence[str] = (),
    strided: bool = True,
    dtype_names: Sequence[str] = DTYPES,
    layouts: Sequence[str] = PLAIN_LAYOUTS,
    max_ndim: int = 3,
) -> TensorSpec:
    """One tensor on the mesh `spec`.

    Args:
        plain: True for plain tensors only, False for DTensors only, None for both.
        partial: see :func:`placements`; such a tensor has a dtype in which it is exact.
        layouts: memory layouts to choose from; a DTensor has one of `SHARDED_LAYOUTS`.
    """
    shape = draw(global_shapes(spec, max_ndim=max_ndim))
    dtype = draw(dtypes(only=dtype_names))
    # More DTensors than plain tensors: they are what geometry is about.
    is_plain = draw(st.sampled_from([False, False, False, True])) if plain is None else plain
    places = None
    if not is_plain:
        places = draw(placements(spec, len(shape), partial=partial, strided=strided))
        if any(text.startswith("P") for text in places):
            whole = dtype in ("int64", "int32") and "P(avg)" not in places
            dtype = dtype if whole or dtype in ("float32", "float64") else "float32"
    allowed = [each for each in layouts if is_plain or each in SHARDED_LAYOUTS]
    return TensorSpec(
        shape=shape,
        dtype=dtype,
        placements=places,
        layout=draw(st.sampled_from(allowed)),
        values=draw(fills()),
        seed=draw(st.integers(0, 3)),
    )


def dtensor_trees(
    spec: MeshSpec, *, leaves: SearchStrategy[TensorSpec] | None = None, max_leaves: int = 5
) -> SearchStrategy[Tree]:
    """Nested dicts, lists, tuples, named tuples and dataclasses of DTensors, plain tensors and
    values that are neither, as optimizer states and checkpoints are.

    Args:
        leaves: the tensors; None takes :func:`tensor_specs` on `spec`.
    """
    tensor = tensor_specs(spec) if leaves is None else leaves
    value = st.builds(_leaf, st.one_of(st.none(), st.integers(0, 9), st.just("text")))
    return st.recursive(
        st.one_of(tensor, tensor, tensor, tensor, value),
        lambda inner: st.sampled_from(CONTAINERS).flatmap(lambda kind: _branches(kind, inner)),
        max_leaves=max_leaves,
    )


def _leaf(value: int | str | None) -> Leaf:
    """Large numbers stand for bytes that are no text: a draw of their own would move all others."""
    return Leaf(b"\x00\xff" if isinstance(value, int) and value > 6 else value)


def _branches(kind: str, inner: SearchStrategy[Tree]) -> SearchStrategy[Branch]:
    if kind in ("named", "box"):
        return st.builds(Branch, st.just(kind), st.tuples(inner, inner))
    children = st.lists(inner, max_size=3).map(tuple)
    if kind not in ("dict", "ordered"):
        return st.builds(Branch, st.just(kind), children)
    # Keys as checkpoints have them: dots in names, and one that repeats a container's own word.
    names = ("a.weight", "b.bias", "items")
    return children.map(lambda found: Branch(kind, found, names[: len(found)]))


@st.composite
def save_load_plans(
    draw: st.DrawFn,
    meshes: Sequence[MeshSpec],
    *,
    operations: Sequence[str] = OPERATIONS,
    min_steps: int = 1,
    max_steps: int = 10,
    max_train: int = 2,
) -> Plan:
    """Lifecycles: train, save, load an earlier save, restart on another mesh, swap the EMA, crash.

    Every plan can be carried out: it loads only what was saved before, and restarts from a save
    that crashed as a job does, from the last one that did not.

    Args:
        meshes: what runs may be on, simplest first; the first one is drawn like any other.
        operations: those to draw from, of `OPERATIONS`; leave out what a trainer does not offer.
    """
    steps: list[Step] = []
    written: list[Step] = []
    for position in range(draw(st.integers(min_steps, max_steps))):
        # The same twice in a row says little: longer training is in `count`, and a second save of
        # a state that did not change shows its fault at the first.
        last = steps[-1].operation if steps else None
        whole = [step for step in written if step.operation != "crash"]
        readable = {"load": whole, "restart": written}
        possible = [n for n in operations if n != last and readable.get(n, True)]
        name = draw(st.sampled_from(possible or list(operations[:1])))
        if name == "train":
            steps.append(Step(name, count=draw(st.integers(1, max_train))))
        elif name in SAVES:
            sharded = name == "save_sharded"
            rank = 0
            if name == "crash":
                sharded = "save_sharded" in operations and draw(st.booleans())
                rank = draw(st.integers(0, 1))
            steps.append(Step(name, slot=position, sharded=sharded, rank=rank))
            written.append(steps[-1])
        elif name in readable:
            source = draw(st.sampled_from(readable[name][::-1]))
            mesh = draw(st.sampled_from(list(meshes))) if name == "restart" else None
            steps.append(Step(name, slot=source.slot, sharded=source.sharded, mesh=mesh))
        else:
            steps.append(Step(name))
    if written and "restart" in operations:
        # No save goes unread.
        mesh = draw(st.sampled_from(list(meshes)))
        steps.append(Step("restart", slot=written[-1].slot, sharded=written[-1].sharded, mesh=mesh))
    return Plan(draw(st.sampled_from(list(meshes))), tuple(steps))
