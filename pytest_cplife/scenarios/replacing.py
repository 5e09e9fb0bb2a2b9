"""A save to a path where an older checkpoint lies: it is replaced, or the save is refused."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.folders import tree_digest
from pytest_cplife.scenarios.crash_kinds import Kind, attempt
from pytest_cplife.scenarios.meeting import Meeting
from pytest_cplife.scenarios.order import Stage


def come_together(stage: Stage, all_ranks: Meeting, outcome: str) -> None:
    """Wait for all ranks after a save that ended with `outcome`, as `attempt` gives it.

    Where the others do not come, the journal has what this rank has raised.
    """
    stage.recorder.fact("raised", outcome)
    all_ranks.wait()
    stage.recorder.fact("raised", "")


def replace(stage: Stage, all_ranks: Meeting, kind: Kind, run: TrainingRun, path: Path) -> str:
    """Save to `path`, where a checkpoint lies; "" where it is replaced, else how that is refused.

    A refusal is an exception on every rank that leaves the older checkpoint as it is.

    Raises:
        RuntimeError: the save has failed in another way.
    """
    before = tree_digest(path)
    all_ranks.wait()
    outcome = attempt(lambda: kind.save(run, path))
    come_together(stage, all_ranks, outcome)
    told = all_ranks.gather((outcome, tree_digest(path) == before))
    raised = {rank: text for rank, (text, _) in enumerate(told) if text}
    if not raised:
        return ""
    if len(raised) == len(told) and all(intact for _, intact in told):
        text = next(iter(raised.values()))
        return f"a save to a path where a checkpoint lies is refused ({text})"
    where = "" if len(raised) == len(told) else ", and the other ranks return"
    what = "" if all(intact for _, intact in told) else "; the older checkpoint is not what it was"
    rank, text = next(iter(raised.items()))
    raise RuntimeError(f"over an older checkpoint rank {rank} raised {text}{where}{what}")
