"""Edge values: what they are, and where they are put."""

from __future__ import annotations

import pytest
import torch

from pytest_cplife.scenarios.edges import edge_values, put
from tests.evidence.toys import ToyRun

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_edges_of_a_dtype(dtype: torch.dtype) -> None:
    values = edge_values(9, dtype)
    info = torch.finfo(dtype)
    assert (values.dtype, values.shape) == (dtype, (9,))
    assert values.isfinite().all() and info.max in values and info.min in values
    assert values[0] == 0 and values[0].signbit() and torch.equal(values[7:], values[:2])
    below = (values != 0) & (values.double().abs() < info.tiny)
    assert below.sum() == 3  # subnormal, once more in the next round
    assert edge_values(0, dtype).shape == (0,)


def test_they_are_put_in_place() -> None:
    run = ToyRun()
    run.model.register_parameter("turn", torch.nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    before = {name: (p, p.data_ptr()) for name, p in run.model.named_parameters()}
    put(run, edge_values)
    for name, parameter in run.model.named_parameters():
        assert before[name] == (parameter, parameter.data_ptr())
        real = torch.view_as_real(parameter) if parameter.is_complex() else parameter
        wanted = edge_values(real.numel(), real.dtype)
        assert torch.equal(real.detach().flatten().view(torch.int32), wanted.view(torch.int32))
    put(run, torch.zeros)
    assert all(not p.any() for p in run.model.parameters())
