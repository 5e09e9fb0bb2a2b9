"""What a scenario's ranks are told, and the first things each of them does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch.distributed as dist

from pytest_cplife.adapter import (
    RUN_CAPABILITIES,
    LifecycleAdapter,
    RankContext,
    TrainingRun,
    overridden,
)
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.evidence.filing import view_file
from pytest_cplife.evidence.golden import content_of
from pytest_cplife.evidence.journal import Recorder
from pytest_cplife.evidence.observe import view_tensor
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.launchers.base import Rank
from pytest_cplife.loading import load_adapter
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.scenarios.streams import Owners, find_owners, seed_streams


@dataclass(frozen=True, slots=True)
class Order:
    """One scenario run, as a value that travels to every rank.

    Attributes:
        adapter: where the adapter is found.
        spec: the mesh of the run, None for a serial one.
        folder: the run's own folder: journals, the trainer's workdir, what it saves.
        store: the folder of tensor contents.
        steps: optimizer steps before the save and after it.
        seed: the seed of the run.
        source: the checkpoint that the run reads, where it reads one.
        second_source: another one.
        golden: a folder of archives, where one was given.
    """

    adapter: str
    spec: MeshSpec | None
    folder: Path
    store: Path
    steps: tuple[int, int]
    seed: int
    source: Path | None = None
    second_source: Path | None = None
    golden: Path | None = None

    @property
    def output(self) -> Path:
        """Where the run saves to."""
        return self.folder / "saved" / "checkpoint"

    def journal(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.journal"

    def prepare(self) -> None:
        """Make the folders, before any rank looks at them."""
        (self.folder / "workdir").mkdir(parents=True)
        self.output.parent.mkdir()

    def serially(self) -> Order:
        return replace(self, spec=None)


@dataclass(slots=True)
class Stage:
    """One rank of a scenario: its adapter, its recorder and its context.

    Attributes:
        owners: whose streams this rank shares, as the trainer's start left them.
    """

    order: Order
    rank: Rank
    adapter: LifecycleAdapter
    recorder: Recorder
    owners: Owners

    def start(self) -> TrainingRun:
        """Start the trainer and take the first snapshot."""
        with self.recorder.phase("start"):
            # As in processes that nobody has seeded: other streams on each rank.
            seed_streams(self.order.seed, Owners.alone(self.rank.rank), 0)
            run = self.adapter.start(self.context())
            if not isinstance(run, TrainingRun):
                raise TypeError(f"start() returned {type(run).__name__}; a TrainingRun is expected")
            # Before anything is loaded: a run and its resumption have to note the same.
            self.owners = find_owners(self.rank.rank)
        self.recorder.fact("device", str(self.rank.device))
        self.recorder.fact("capabilities", sorted(self.offered(run)))
        return run

    def context(self) -> RankContext:
        serial = self.order.spec is None
        return RankContext(
            spec=self.order.spec,
            rank=self.rank.rank,
            world_size=1 if serial else self.rank.world_size,
            device=self.rank.device,
            seed=self.order.seed,
            workdir=self.order.folder / "workdir",
            mesh_factory=None if self.rank.serial else self.rank.mesh,
        )

    def reading(self, source: Path) -> Stage:
        """The same stage with another checkpoint to read."""
        return replace(self, order=replace(self.order, source=source))

    def align(self, point: int) -> None:
        """Give the random streams of compared runs the same state, unless the trainer does it.

        Ranks that shared a stream when the trainer had started share it again, and no others.

        Args:
            point: the stretch of training that follows: 0 from the start, 1 from the save point, 2
                from the step after it.
        """
        if self.adapter.rng_policy != "restore":
            self.seed(1 + point)

    def seed(self, moment: int) -> None:
        """Seed the random streams for a moment of the run that has been started."""
        seed_streams(self.order.seed, self.owners, moment)

    def offered(self, run: TrainingRun) -> frozenset[str]:
        """The run's optional methods that it defines."""
        return overridden(type(run), TrainingRun, RUN_CAPABILITIES)

    def predict(self, name: str, run: TrainingRun) -> None:
        """Note the run's prediction, where it offers one."""
        try:
            with self.recorder.phase("predict"):
                prediction = run.predict()
        except NotImplementedError:
            self.recorder.absent("capability predict is not offered", name)
            return
        self.recorder.fact(name, view_tensor(prediction, self.recorder.store))

    def file(self, name: str, path: Path, view: CheckpointView) -> None:
        """Record what a checkpoint holds."""
        self.recorder.file(name, view_file(path, view, self.recorder.store))

    def content(self, path: Path) -> str:
        """A digest of the checkpoint at `path`, as the first rank sees it; "" on the others."""
        return content_of(path) if self.rank.rank == 0 else ""

    def barrier(self) -> None:
        """Wait for all ranks, on the suite's behalf."""
        if dist.is_initialized():
            dist.barrier()

    def close(self, run: TrainingRun) -> None:
        with self.recorder.phase("close"):
            run.close()


def set_stage(rank: Rank, order: Order) -> Stage:
    """Build adapter and recorder on this rank."""
    return Stage(
        order=order,
        rank=rank,
        adapter=load_adapter(order.adapter)(),
        recorder=Recorder(rank.rank, order.journal(rank.rank), TensorStore(order.store)),
        owners=Owners.alone(rank.rank),
    )
