"""Public names that are one slip of the pen away from a name of the protocol.

What the suite does not know it never asks for, so that a capability under a misspelled name is
silently not covered.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from pytest_cplife.adapter import LifecycleAdapter, TrainingRun

_SHORT = 5
"""Names of up to so many letters have neighbours that are words of their own (`read`, `ready`)."""


def lookalikes(subject: LifecycleAdapter | TrainingRun | type[LifecycleAdapter]) -> tuple[str, ...]:
    """Each suspicious name of an adapter or a run with the one that may be meant.

    As ``"Run.smaple_ids: sample_ids"``. No attribute is evaluated.
    """
    own = subject if isinstance(subject, type) else type(subject)
    base = TrainingRun if issubclass(own, TrainingRun) else LifecycleAdapter
    known = {name for name in (*dir(base), *base.__annotations__) if not name.startswith("_")}
    public = [name for name in dir(subject) if not name.startswith("_") and name not in known]
    return tuple(
        f"{own.__qualname__}.{name}: {meant}"
        for name in public
        for meant in _meant(name, sorted(known), subject, base)
    )


def _meant(name: str, known: list[str], subject: object, base: type) -> Iterator[str]:
    for other in known:
        # A name that is there as well may rightly have a neighbour: `optimizer`, `optimizers`.
        strict = len(other) <= _SHORT or _given(subject, other, base)
        if swapped(name, other) or (not strict and one_slip(name, other)):
            yield other


def _given(subject: object, name: str, base: type) -> bool:
    """Whether `subject` has a `name` of its own, and not just the protocol's default."""
    missing = object()
    own = inspect.getattr_static(subject, name, missing)
    return own is not missing and own is not inspect.getattr_static(base, name, missing)


def one_slip(name: str, other: str) -> bool:
    """One letter too many, too few or another one, or two neighbours swapped."""
    return name != other and (max(map(len, _rest(name, other))) <= 1 or swapped(name, other))


def swapped(name: str, other: str) -> bool:
    """Two neighbouring letters have changed places, and nothing else has."""
    a, b = _rest(name, other)
    return len(a) == 2 and a == b[::-1]


def _rest(a: str, b: str) -> tuple[str, str]:
    """What is left of both without their common beginning and end."""
    while a and b and a[0] == b[0]:
        a, b = a[1:], b[1:]
    while a and b and a[-1] == b[-1]:
        a, b = a[:-1], b[:-1]
    return a, b
