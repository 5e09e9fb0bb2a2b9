"""How a fault is planted: a healthy adapter, one of whose classes is exchanged for a worse one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_cplife import LifecycleAdapter, MeshSpec, RankContext, TrainingRun


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        adapter_ref: the faulty adapter, as ``--cplife-adapter`` takes it.
        rule: id of the rule that has to find it, "" where there is none yet.
        subject: what that rule has to name.
        mesh: the topology to look at, "" for a rule that is judged once over all of them.
        public: ids of the public reports that tell of it.
        why: the mechanism.
        earlier: a healthy adapter that stands for an earlier version: a golden archive of its file
            is given to the session; "" where there is none.
        likely: words that the rule's diagnosis has to have in it; "" where no pattern tells it.
    """

    adapter_ref: str
    rule: str
    subject: str
    mesh: str
    public: tuple[str, ...]
    why: str
    earlier: str = ""
    likely: str = ""

    @property
    def spec(self) -> MeshSpec | None:
        return MeshSpec.parse(self.mesh) if self.mesh else None

    @property
    def profile(self) -> str:
        """How much fuzzing has to be done to find it."""
        return "gate" if self.rule.startswith("FUZZ-") else "off"

    @property
    def name(self) -> str:
        return self.adapter_ref.rpartition(":")[2]


PLANTED: list[Fault] = []
"""Every fault, in the order in which its module is imported."""


def plant(
    base: type[LifecycleAdapter],
    *,
    rule: str,
    subject: str,
    mesh: str,
    public: tuple[str, ...] = (),
    earlier: bool = False,
    likely: str = "",
) -> Callable[[type], type[LifecycleAdapter]]:
    """Decorate a faulty subclass of something that `base` uses; the name becomes the adapter.

    The subclass may be one of the adapter itself, of its runs, or of the reference's trainer or
    average. Only distributed runs are faulty: the serial one is what they are compared with. With
    `earlier` the session gets a golden archive of `base`.
    """

    def decorate(cls: type) -> type[LifecycleAdapter]:
        adapter = cls if issubclass(cls, LifecycleAdapter) else _faulty(base, cls)
        why = " ".join((cls.__doc__ or "").split())
        ref = f"{cls.__module__}:{cls.__name__}"
        before = f"{base.__module__}:{base.__name__}" if earlier else ""
        PLANTED.append(Fault(ref, rule, subject, mesh, public, why, before, likely))
        return adapter

    return decorate


def _faulty(base: type[LifecycleAdapter], cls: type) -> type[LifecycleAdapter]:
    members: dict[str, Any] = {"__module__": cls.__module__, "__doc__": cls.__doc__}
    if hasattr(base, "run_class"):
        members["run_class"] = cls
    else:

        def start(self: LifecycleAdapter, ctx: RankContext) -> TrainingRun:
            run = base.start(self, ctx)
            if not ctx.serial:
                _exchange(run, cls)
            return run

        members["start"] = start
    return type(cls.__name__, (base,), members)


def _exchange(run: TrainingRun, cls: type) -> None:
    """Give the object of the reference run that `cls` derives from that class."""
    trainer = run.trainer  # type: ignore[attr-defined]
    for part in (run, trainer, trainer.ema):
        if issubclass(cls, type(part)):
            part.__class__ = cls
            return
    raise TypeError(f"{cls.__name__} derives from nothing that the reference run has")
