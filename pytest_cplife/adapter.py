"""The protocol between a trainer and the conformance suite.

A user subclasses :class:`LifecycleAdapter` (a factory for runs of one trainer) and
:class:`TrainingRun` (one live run on one rank). Two methods of the first and three of the
second are required; everything else is a *capability*: a method or attribute that the subclass
overrides. A capability that is not overridden is absent, and the rules that need it are
reported as not covered, never as passed. An optional method, `start`, `save` and `load` of a serial
run, and a `save` that is called from inside an optimizer's step may also raise
:class:`NotImplementedError` to say "not offered".

Promises that hold for every method of a run: it is collective and called on every rank
in the same order; :meth:`TrainingRun.close` comes before the next
:meth:`LifecycleAdapter.start` in the same process. torchrun's variables (``RANK``,
``LOCAL_RANK``, ``WORLD_SIZE``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``, ``MASTER_ADDR``,
``MASTER_PORT``) are set in every rank, and absent in a serial run.

This module imports no torch, so that naming the classes costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_cplife.mesh import MeshSpec

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim.lr_scheduler import LRScheduler

    from pytest_cplife.evidence.checkpoint import CheckpointView


@dataclass(slots=True)
class RankContext:
    """Where one rank of a run stands; what :meth:`LifecycleAdapter.start` is given.

    Attributes:
        spec: the topology, None for a serial run.
        rank: global rank, 0 in a serial run.
        world_size: number of ranks, 1 in a serial run.
        device: where this rank's tensors belong.
        seed: the seed of the run, the same on every rank.
        workdir: a folder that all ranks of the scenario share, empty at its start.
    """

    spec: MeshSpec | None
    rank: int
    world_size: int
    device: torch.device
    seed: int
    workdir: Path
    mesh_factory: Callable[[MeshSpec], DeviceMesh] | None = field(default=None, repr=False)

    @property
    def serial(self) -> bool:
        """True for a run without a process group."""
        return self.spec is None

    @property
    def mesh(self) -> DeviceMesh:
        """The device mesh of `spec`, built when first asked for.

        A trainer that builds its own mesh never touches this, and so never meets a second
        mesh over the same ranks, which DTensor would hold to be different.

        Raises:
            RuntimeError: the run is serial, or there is no process group.
        """
        if self.spec is None:
            raise RuntimeError("a serial run has no mesh")
        if self.mesh_factory is None:
            raise RuntimeError(
                f"no process group is initialised, so there is no mesh for {self.spec.option!r}"
            )
        return self.mesh_factory(self.spec)


@dataclass(frozen=True, slots=True)
class EmaSpec:
    """How a trainer averages its weights; without one the suite infers the decay.

    Attributes:
        decay: the factor of the old average; a callable gets the number of the update, from 1.
        init: what the first average is: a copy of the initial weights, or of the weights
            at the first update.
        start_step: global step from which updates are made.
        every: optimizer steps between updates.
        float_buffers: what happens to floating-point buffers; ``"ignore"`` covers an absent
            and a frozen buffer.
        integer_buffers: the same for integer and boolean buffers.
    """

    decay: float | Callable[[int], float]
    init: Literal["weights", "first_update"] = "weights"
    start_step: int = 0
    every: int = 1
    float_buffers: Literal["average", "copy", "ignore"] = "ignore"
    integer_buffers: Literal["copy", "ignore"] = "ignore"


@dataclass(frozen=True, slots=True)
class LegacyCheckpoint:
    """A checkpoint file in an earlier format that the user keeps and still wants to load.

    Attributes:
        path: the file or directory.
        format: the name of the format, for messages.
        global_step: the step it was saved at.
        digests: optional digests of the full model tensors by FQN.
    """

    path: Path
    format: str
    global_step: int
    digests: Mapping[str, str] | None = None


class PendingSave(Protocol):
    """A save that goes on in the background; a ``Future`` is one."""

    def result(self) -> object:
        """Return when the checkpoint is complete on the disk, on every rank. Collective.

        Raises:
            Exception: what has gone wrong, on every rank.
        """


class TrainingRun(ABC):
    """One live run on one rank.

    `model` and `optimizers` are set by :meth:`LifecycleAdapter.start`, and `global_step`
    counts optimizer steps since step 0, earlier runs included. Whenever the suite looks,
    trainable parameters are DTensors, unless `plain_parameters` of the adapter names them.
    """

    model: nn.Module
    """The live model; its parameters' names and order are the serial model's."""
    optimizers: Sequence[torch.optim.Optimizer]
    """The live optimizers."""
    schedulers: Sequence[LRScheduler] = ()
    """The live learning-rate schedulers, if there are any."""
    ema: Mapping[str, Tensor] | None = None
    """The live averaged weights by FQN (one name per tied pair), DTensor or plain."""
    global_step: int
    """Optimizer steps since step 0, resumed ones included."""
    epoch: int = 0
    """Completed epochs; it rolls over with the last step of one."""

    @abstractmethod
    def train(self, num_steps: int) -> list[float]:
        """Make exactly `num_steps` optimizer steps; return their losses, equal on all ranks.

        The sequence of *global* batches must not depend on the mesh: split a fixed global
        batch over the data-parallel ranks.
        """

    @abstractmethod
    def save(self, path: Path) -> None:
        """Write a plain checkpoint at exactly `path` (a file or a directory). Collective.

        It holds full, plain tensors and whatever :meth:`load` needs to go on as if the run had
        never stopped. When it returns on every rank the checkpoint is complete on disk.

        An older checkpoint may lie at `path`: it is replaced, or the save is refused with an error
        on every rank before anything is touched.
        """

    @abstractmethod
    def load(self, path: Path) -> None:
        """Restore the state that :meth:`save` wrote, from any topology. Collective.

        It may be lazy until :meth:`ready`.
        """

    def ready(self) -> None:  # noqa: B027  (optional, and doing nothing is right)
        """Complete what `start` or `load` put off; may go as far as the first step's beginning."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters by FQN. Override it where the live parameters are flattened (ZeRO)."""
        yield from self.model.named_parameters()

    def named_optimizer_state(self) -> Mapping[str, Mapping[str, Any]]:
        """Optimizer state by parameter FQN, then by entry name.

        The default follows `optimizer.state` through the identity of the model's parameters;
        override it where an optimizer holds tensors of its own (ZeRO). Entries may be full tensors,
        the same on all ranks, or DTensors that say which part this rank has. It may communicate.
        It reads; it must never create state.
        """
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        state: dict[str, dict[str, Any]] = {}
        for optimizer in self.optimizers:
            for parameter, entries in optimizer.state.items():
                name = names.get(id(parameter))
                if name is not None:
                    state.setdefault(name, {}).update(entries)
        return state

    def save_sharded(self, path: Path) -> None:
        """Capability. Write a distributed (DCP) checkpoint into the directory `path`.

        An older checkpoint may lie at `path`: it is replaced, or the save is refused with an error
        on every rank before anything is touched.
        """
        raise NotImplementedError

    def load_sharded(self, path: Path) -> None:
        """Capability. Restore what :meth:`save_sharded` wrote, from any topology."""
        raise NotImplementedError

    def save_into(self, folder: Path) -> None:
        """Capability. Save as the training loop does, into a folder of checkpoints. Collective.

        Under a name of the trainer's own, beside those of earlier steps, and with all that goes
        with it: a pointer to the newest, the removal of old ones. At first there may be no folder.
        """
        raise NotImplementedError

    def load_newest(self, folder: Path) -> bool:
        """Capability. Restore the newest whole checkpoint that `save_into` left, on any topology.

        Collective. False, and nothing is changed, where there is none. It may be lazy until
        :meth:`ready`.
        """
        raise NotImplementedError

    def save_sharded_async(self, path: Path) -> PendingSave:
        """Capability. Begin what :meth:`save_sharded` writes, and return before it is written.

        From then on the state may change. A save that is begun before this one has ended waits for
        it, or is refused on every rank.
        """
        raise NotImplementedError

    def ema_weights(self) -> AbstractContextManager[None]:
        """Capability. Inside the block the model holds the averaged weights."""
        raise NotImplementedError

    def update_ema(self) -> None:
        """Capability. Make one update of the averaged weights, outside :meth:`train`."""
        raise NotImplementedError

    def predict(self) -> Tensor:
        """Capability. The full output on a fixed input, plain, the same on all ranks."""
        raise NotImplementedError

    def sample_ids(self) -> Sequence[int]:
        """Capability. Ids of the samples this rank consumed in its last step, all micro-batches."""
        raise NotImplementedError

    def control_scalars(self) -> Mapping[str, float]:
        """Capability. Random scalars that steer control flow, such as recycling counts."""
        raise NotImplementedError

    def named_extra_state(self) -> Mapping[str, object]:
        """Capability. Whatever else a resume must restore: loss scaler, data cursor, patience, ...

        Leave out what moves by itself, such as the time of day.
        """
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027  (optional, and doing nothing is right)
        """Release what the run holds; comes before the next `start` in the same process."""


class LifecycleAdapter(ABC):
    """Factory for runs of one trainer. Built with no arguments, once per rank and scenario."""

    framework: str = "torch"
    """Name of the training framework, for reports."""
    checkpoint_format: str = "torch.save"
    """Name of the plain checkpoint's format, for reports."""
    meshes: Sequence[MeshSpec | str] = ("dp=1", "cp=2", "dp=2,cp=2")
    """The topologies that the trainer supports, smallest first."""
    placeholders: Collection[str] = ()
    """FQN prefixes of modules not ported yet."""
    rng_policy: Literal["restore", "offset", "none"] = "offset"
    """What a resume does with the global random streams (torch's on CPU and devices, NumPy's and
    ``random``'s): put them back, draw fresh ones offset by rank, epoch and step, or nothing. The
    default is ``"offset"``.

    Under any policy the suite seeds them before each :meth:`start`, on each rank apart, as in
    processes that nobody has seeded. With ``"restore"`` it then leaves them alone. With
    ``"offset"`` and ``"none"`` it seeds them again before the first step, at the save point of the
    uninterrupted run and after :meth:`TrainingRun.ready` of the resumed one, and once more a step
    later, so that the two can be compared with dropout on. Of such seeds, ranks whose stream was
    the same when `start` returned get the same one, and ranks whose streams differed get different
    ones. Some comparisons (fuzzing, a second set of streams) seed under any policy.

    Generators of the trainer's own the suite leaves alone. Under ``"offset"`` a load may seed them
    afresh: steps that differ by that are not covered, where :meth:`TrainingRun.sample_ids` says
    that the samples are the same."""
    ema_spec: EmaSpec | None = None
    """The rule of the average; None with a run that has one: the decay is inferred."""
    save_points: Literal["any", "epoch_end"] = "any"
    """Where a save is possible: after any step, or before the first step and at the ends of epochs
    only."""
    steps_per_epoch: int | None = None
    """Steps of one epoch; needed with ``save_points = "epoch_end"``."""
    plain_parameters: Collection[str] = ()
    """FQN prefixes (``""`` for all) of parameters that stay plain tensors by design (DDP, modules
    that tensor parallelism leaves alone). They are judged by equality over the ranks."""
    launchers: Collection[str] = ("processes", "threads", "torchrun")
    """The launchers that the trainer can run under."""
    payload_objects: bool | Collection[str] = ()
    """What checkpoints hold beside plain data, by design: qualified names of classes and functions
    (``"mytrainer.state.Callbacks"``) that their pickles carry, or True for any object, where a load
    cannot be restricted. Without it the suite looks for files that ``torch.load`` reads under
    ``weights_only=True``, and for loads that run no code of the file's."""
    live_load: bool = True
    """False where :meth:`TrainingRun.load` is possible only before the first step."""
    initialises_process_group: bool = False
    """True where the trainer calls ``init_process_group`` itself; each start gets fresh workers."""
    bitwise_resume: bool = True
    """False where a process that has just started adds up its first gradients in another order than
    one that runs on, as DDP does on more than two ranks. A resumed run may then differ by what a
    last bit in its gradients does, which the suite measures on a run that never stopped."""

    @abstractmethod
    def build_serial_model(self) -> nn.Module:
        """The serial model on the CPU, plain tensors, the same initial weights at every call."""

    @abstractmethod
    def start(self, ctx: RankContext) -> TrainingRun:
        """Start a run on this rank. Collective; a serial run where ``ctx.serial``.

        Without an initialised process group a distributed start must raise at once, unless
        `initialises_process_group` is set.
        """

    def wrap(self, module: nn.Module, ctx: RankContext) -> nn.Module:
        """Capability. The distributing step alone: a serial module in, the sharded one out."""
        raise NotImplementedError

    def load_serial(self, path: Path) -> nn.Module:
        """The serial model with the weights of the plain checkpoint at `path`, loaded strictly.

        The default finds the model's state with :meth:`read_checkpoint`.
        """
        module = self.build_serial_model()
        view = self.read_checkpoint(path)
        module.load_state_dict(dict(view.model), strict=True)
        return module

    def placement_plan(self, spec: MeshSpec) -> Mapping[str, Mapping[str, str]]:
        """Capability. Where each parameter lies on the mesh `spec`, by a prefix of its FQN.

        The longest prefix counts (``""`` covers all). It gives for each dimension of the
        parameter's mesh ``"R"``, ``"S(0)"`` or, for FSDP over tensor parallelism, ``"S(0,sf=2)"``;
        ``{}`` says that the parameter stays plain.
        """
        raise NotImplementedError

    def load_pretrained(self, run: TrainingRun, path: Path) -> None:
        """Capability. Transfer load: ``strict=False`` plus an architecture check.

        It takes over the weights that the file and the model share, and nothing else. A file
        without one of the model's modules, or with one that it lacks, is taken; one with a weight
        of another size, or without any of the model's names, is refused.
        """
        raise NotImplementedError

    def to_plain(self, tree: Any) -> Any:
        """Capability. DTensors in any nesting become plain full tensors."""
        raise NotImplementedError

    def realign(self, tree: Any, template: Any) -> Any:
        """Capability. The inverse of `to_plain`: to the template's meshes and placements."""
        raise NotImplementedError

    def export_plain(self, path: Path, out: Path) -> None:
        """Capability. Make the plain file `out` of a checkpoint that is a directory (DCP, ZeRO)."""
        raise NotImplementedError

    def read_checkpoint(self, path: Path) -> CheckpointView:
        """What the plain checkpoint at `path` holds.

        The default unpickles the file on the CPU and finds model, optimizers, EMA and counters by
        their structure; override it for formats of your own, and return a
        ``pytest_cplife.CheckpointView`` with `model` (the state that ``load_state_dict`` of the
        serial model takes), and where the file has them `optimizers` (one mapping each with
        ``state``, by parameter name or number, and ``param_groups``), `ema` (by FQN), `counters`
        (``global_step``, ``epoch``) and `payload` (all of it, which `write_checkpoint` gets back).
        """
        from pytest_cplife.evidence.checkpoint import read_plain_checkpoint

        return read_plain_checkpoint(path, self.build_serial_model())

    def write_checkpoint(self, view: CheckpointView, path: Path) -> None:
        """Write what :meth:`read_checkpoint` gave, and the suite has edited in place, to `path`.

        The default pickles `view.payload`. Override it together with `read_checkpoint`, or no
        edited file (a weight missing, another dtype, an earlier format) is offered to `load`.
        """
        import torch

        torch.save(view.payload, path)

    def legacy_checkpoints(self) -> Iterable[LegacyCheckpoint]:
        """Capability. Files of earlier formats that the user keeps."""
        raise NotImplementedError


ADAPTER_CAPABILITIES = (
    "wrap",
    "placement_plan",
    "load_pretrained",
    "to_plain",
    "realign",
    "export_plain",
    "legacy_checkpoints",
)
"""Optional methods of the adapter that have no default."""

RUN_CAPABILITIES = (
    "save_sharded",
    "load_sharded",
    "save_sharded_async",
    "save_into",
    "load_newest",
    "ema_weights",
    "update_ema",
    "predict",
    "sample_ids",
    "control_scalars",
    "named_extra_state",
)
"""Optional methods of the run that have no default."""


def overridden(cls: type, base: type, names: Iterable[str]) -> frozenset[str]:
    """Those of `names` that `cls` defines otherwise than `base`."""
    return frozenset(name for name in names if getattr(cls, name) is not getattr(base, name))
