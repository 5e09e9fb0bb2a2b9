"""The two kinds of checkpoint that an interruption can meet, and what all such runs begin with."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.folders import StateBook
from pytest_cplife.scenarios.order import Stage


@dataclass(frozen=True, slots=True)
class Kind:
    """How one kind of checkpoint is written and read.

    Attributes:
        needs: the capabilities without which there is none.
    """

    needs: tuple[str, ...]
    save: Callable[[TrainingRun, Path], None]
    load: Callable[[TrainingRun, Path], None]

    def is_offered(self, stage: Stage, run: TrainingRun) -> bool:
        """Whether the run has this kind; where it has not, that is noted and the run closed."""
        lacking = [name for name in self.needs if name not in stage.offered(run)]
        if lacking:
            stage.recorder.absent(f"capability {', '.join(lacking)} is not offered", "all")
            stage.close(run)
        return not lacking


PLAIN = Kind((), lambda run, path: run.save(path), lambda run, path: run.load(path))
SHARDED = Kind(
    ("save_sharded", "load_sharded"),
    lambda run, path: run.save_sharded(path),
    lambda run, path: run.load_sharded(path),
)


def attempt(save: Callable[[], None]) -> str:
    """Save; the exception as text, "" where there was none.

    Of a save that failed nothing lives on: a writer of torch's, held by the exception, writes what
    it has left when it goes, and that must not be in a later save.
    """
    outcome = ""
    try:
        save()
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        # torch's CheckpointException, which a failed sharded save raises, is no Exception.
        outcome = f"{type(error).__name__}: {error}"
    if outcome:
        gc.collect()
    return outcome


def train(stage: Stage, run: TrainingRun) -> None:
    """One step, or as many as there are between two places where a save is possible."""
    at_epoch_ends = stage.adapter.save_points == "epoch_end"
    with stage.recorder.phase("train"):
        run.train(stage.adapter.steps_per_epoch or 1 if at_epoch_ends else 1)


def check_saved(path: Path) -> None:
    """Raise where a save that returned has written nothing: what follows would mean nothing."""
    if not path.exists():
        raise FileNotFoundError(f"the save has returned, and there is no {path.name}")


def book_of(checkpoint: Path) -> StateBook:
    """The states of the folder that `checkpoint` lies in."""
    return StateBook(checkpoint.parent.parent / "states")
