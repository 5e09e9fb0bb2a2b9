"""Descriptions: what the strategies draw is what was asked for, can be built, and survives JSON."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from pytest_cplife.fuzz import trees, values
from pytest_cplife.fuzz.build import on_memory, to_bytes
from pytest_cplife.fuzz.plans import READS, SAVES, Plan, Step
from pytest_cplife.fuzz.tensors import DTYPES, PLAIN_LAYOUTS, REDUCE_OPS, TensorSpec
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.strategies import (
    dtensor_trees,
    global_shapes,
    mesh_specs,
    placements,
    save_load_plans,
    tensor_specs,
)

TWO = MeshSpec.parse("dp=2,tp=2")
STEADY = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@STEADY
@given(mesh_specs(max_world_size=6, max_dims=3))
def test_meshes_have_the_world_size_asked_for(spec: MeshSpec) -> None:
    assert 1 <= spec.world_size <= 6 and len(spec.dims) <= 3


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (4,), (5,), (67,), (1, 1), (3, 5, 1)])
def test_awkward_shapes_are_drawn(shape: tuple[int, ...]) -> None:
    one = settings(STEADY, max_examples=20_000)
    assert find(global_shapes(TWO), lambda drawn: drawn == shape, settings=one) == shape


@pytest.mark.parametrize("places", [("R", "S(0)"), ("S(0)", "S(0)"), ("S(0,sf=2)", "S(0)")])
def test_placements_are_drawn(places: tuple[str, ...]) -> None:
    one = settings(STEADY, max_examples=2000)
    assert find(placements(TWO, 2), lambda drawn: drawn == places, settings=one) == places


@pytest.mark.parametrize("op", REDUCE_OPS)
def test_partial_placements_are_drawn_where_asked_for(op: str) -> None:
    drawn = find(placements(TWO, 1, partial=[op]), lambda drawn: f"P({op})" in drawn)
    assert drawn.count(f"P({op})") >= 1


@STEADY
@given(st.data())
def test_every_tensor_can_be_built_from_its_bytes(data: st.DataObject) -> None:
    spec = data.draw(mesh_specs())
    tensor = data.draw(tensor_specs(spec, partial=REDUCE_OPS))
    whole = values.full_bytes(tensor, spec.shape)
    built = on_memory(whole, tensor.dtype, tensor.layout)
    assert tuple(built.shape) == tensor.shape
    assert built.dtype == getattr(torch, tensor.dtype)
    assert np.array_equal(to_bytes(built), whole)


@STEADY
@given(st.data())
def test_shards_make_up_the_whole(data: st.DataObject) -> None:
    spec = data.draw(mesh_specs())
    tensor = data.draw(tensor_specs(spec, plain=False))
    whole = values.full_bytes(tensor)
    held = sum(
        values.local_bytes(tensor, spec.shape, place).size
        for place in itertools.product(*map(range, spec.shape))
    )
    copies = math.prod(
        size
        for size, record in zip(spec.shape, tensor.records, strict=True)
        if record.kind == "replicate"
    )
    assert held == copies * whole.size


@STEADY
@given(dtensor_trees(TWO))
def test_trees_survive_json(tree: trees.Tree) -> None:
    assert trees.from_json(json.loads(json.dumps(trees.to_json(tree)))) == tree


def test_bytes_survive_json() -> None:
    tree = trees.Branch("list", (trees.Leaf(b"\x00\xff"), trees.Leaf(b""), trees.Leaf("00ff")))
    assert trees.from_json(json.loads(json.dumps(trees.to_json(tree)))) == tree


@STEADY
@given(save_load_plans([TWO, MeshSpec.parse("dp=1")]))
def test_plans_survive_json_and_load_only_what_was_saved(plan: Plan) -> None:
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    written: dict[int, Step] = {}
    for step in plan.steps:
        if step.operation in SAVES:
            written[step.slot] = step
        elif step.operation in READS:
            source = written[step.slot]
            assert source.sharded == step.sharded
            # Only a fresh start has another checkpoint to go back to.
            assert step.operation == "restart" or source.operation != "crash"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", ["count", "special", "bits"])
def test_values_of_every_dtype(dtype: str, fill: str) -> None:
    spec = TensorSpec((12,), dtype, values=fill)
    other = TensorSpec((12,), dtype, values=fill, seed=1)
    first, second = values.full_bytes(spec), values.full_bytes(other)
    assert not np.array_equal(first, second)
    if fill == "special" and "float" in dtype:
        real = on_memory(first, dtype, "contiguous").to(torch.float64)
        assert real.isnan().any() and (torch.signbit(real) & (real == 0)).any()


def test_counted_values_are_the_numbers_that_they_seem() -> None:
    for dtype in ("float32", "bfloat16", "float16", "float64", "int64", "int8"):
        raw = values.full_bytes(TensorSpec((5,), dtype))
        assert on_memory(raw, dtype, "contiguous").tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("layout", PLAIN_LAYOUTS)
def test_layouts_are_what_they_are_called(layout: str) -> None:
    spec = TensorSpec((3, 4), layout=layout)
    built = on_memory(values.full_bytes(spec), spec.dtype, layout)
    expected = {
        "contiguous": ((4, 1), 0),
        "transposed": ((1, 3), 0),
        "offset": ((4, 1), 3),
        "stepped": ((8, 2), 0),
        "expanded": ((0, 1), 0),
    }
    assert (built.stride(), built.storage_offset()) == expected[layout]


@pytest.mark.parametrize("op", REDUCE_OPS)
def test_partial_terms_reduce_to_the_value(op: str) -> None:
    spec = TensorSpec((4,), "float64", ("S(0)", f"P({op})"))
    reduce = {"sum": sum, "avg": lambda t: sum(t) / 2, "max": max, "min": min, "product": math.prod}
    whole = on_memory(values.full_bytes(spec, (2, 2)), "float64", "contiguous").tolist()
    terms = [
        on_memory(values.local_bytes(spec, (2, 2), (0, c)), "float64", "contiguous").tolist()
        for c in range(2)
    ]
    assert [reduce[op](pair) for pair in zip(*terms, strict=True)] == whole[:2]
