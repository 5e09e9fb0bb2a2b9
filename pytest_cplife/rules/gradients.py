"""How far a distributed gradient may be from the serial one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from pytest_cplife.evidence.assemble import Assembler, CannotAssemble
from pytest_cplife.evidence.compare import as_doubles, difference
from pytest_cplife.evidence.records import TensorRecord
from pytest_cplife.rules.model import Finding, Measurement, Violation

_ROUNDINGS = 256
"""A gradient is a sum over batch, sequence and features that a mesh cuts and orders otherwise. Each
of its roundings is at most one unit in the last place of the largest partial sum; with signs at
random, 256 of them stand for some 65 thousand terms."""
_MOMENT = "parity: first step"
_HALF = 1e-4
"""Dtypes with a rounding unit above this are half precision."""
_SMALL = 1e-3
"""Tensors whose gradient is this much smaller than the largest one are held to the latter's
rounding: what reaches them has passed through activations of that size."""


def gradients_equal(
    assembler: Assembler,
    expected: Mapping[str, TensorRecord],
    observed: Mapping[str, Sequence[TensorRecord]],
    kept_in: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """Find gradients that are not the serial ones within rounding.

    Args:
        expected: the serial gradients by FQN, or what is proportional to them.
        observed: the distributed ones, one record per rank.
        kept_in: by the same names, the dtypes that gradients have had on the way.
    """
    serial = {name: assembler.full([record]) for name, record in expected.items()}
    top = max((float(g.abs().max()) for g in serial.values() if g.numel()), default=0.0)
    worst = 0.0
    for name, wanted in serial.items():
        if name not in observed:
            if bool(wanted.any()):
                yield Violation(name, "a gradient, as in the serial run", "none", _MOMENT)
            continue
        try:
            seen = assembler.full(observed[name])
            gap = difference(wanted, seen)
        except (CannotAssemble, ValueError) as problem:
            yield Violation(name, "the serial gradient", str(problem), _MOMENT)
            continue
        scale = max(float(wanted.abs().max()) if wanted.numel() else 0.0, _SMALL * top)
        dtypes = [wanted.dtype, seen.dtype]
        if kept_in and name in kept_in:
            dtypes.append(getattr(torch, kept_in[name].removeprefix("torch.")))
        budget = _ROUNDINGS * _unit(*dtypes) * scale
        worst = max(worst, gap.max_abs / budget if budget else 0.0)
        if gap.max_abs > budget:
            yield Violation(
                name,
                "the serial gradient",
                _how(wanted, seen),
                _MOMENT,
                step=1,
                difference=gap.max_abs,
                budget=budget,
            )
    yield Measurement(f"gradients against the serial ones ({len(serial)}), of budget", worst, 1.0)


def _unit(*dtypes: torch.dtype) -> float:
    """The rounding unit of a sum: of float32, or of a coarser dtype that it is kept in.

    Half precision sums in float32 and rounds once, so that a few units of its own are enough.
    """
    units = [torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point]
    coarse = max(units, default=0.0)
    return max(torch.finfo(torch.float32).eps, coarse / 64 if coarse > _HALF else coarse)


def _how(wanted: torch.Tensor, seen: torch.Tensor) -> str:
    """A factor, where the one gradient is a multiple of the other."""
    a, b = (as_doubles(tensor).reshape(-1) for tensor in (wanted, seen))
    size = float(a @ a)
    factor = float(a @ b) / size if size else 0.0
    rest = float((b - factor * a).norm())
    if factor and rest <= 1e-3 * float(b.norm()):
        return f"{factor:.4g} times it"
    if not bool(seen.any()):
        return "zero"
    return "another one"
