"""Plain files with objects in them: one that nobody declared, and one as the adapter declares."""

from __future__ import annotations

from pytest_cplife.adapter import TrainingRun
from pytest_cplife.evidence.checkpoint import CheckpointView
from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.editing import Edit, NothingToEdit, editable, offer_edits
from pytest_cplife.scenarios.marking import Keepsake, Mark, forget, ran
from pytest_cplife.scenarios.order import Order, Stage, set_stage

ENTRY = "an_object_of_another_version"


def marked(rank: Rank, order: Order) -> None:
    """Load files with an object as a further entry, and note whether its code ran."""
    stage = set_stage(rank, order)
    forget(ENTRY)
    offer_edits(stage, EDITS)
    stage.recorder.fact("foreign code ran", ran(ENTRY))


def _foreign_code(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    if stage.adapter.payload_objects is True:
        raise NothingToEdit("the adapter declares that checkpoints hold any object")
    editable(view.payload)[ENTRY] = Mark(ENTRY)
    return ENTRY


def _declared_object(view: CheckpointView, stage: Stage, run: TrainingRun) -> str:
    if stage.adapter.payload_objects is not True:
        raise NothingToEdit("the adapter does not declare that checkpoints hold any object")
    editable(view.payload)[ENTRY] = Keepsake(1, "of no meaning here")
    return ENTRY


EDITS: dict[str, Edit] = {
    "foreign code": _foreign_code,
    "an object": _declared_object,
}
"""By name: what the file holds beside what the trainer saved."""
