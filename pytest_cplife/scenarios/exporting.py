"""The way from a sharded checkpoint to the plain file, and on from there."""

from __future__ import annotations

from pytest_cplife.launchers.base import Rank
from pytest_cplife.scenarios.order import Order, set_stage


def exporting(rank: Rank, order: Order) -> None:
    """Without a process group: make the plain file, and read it."""
    stage = set_stage(rank, order)
    assert order.source is not None
    try:
        with stage.recorder.phase("export"):
            stage.adapter.export_plain(order.source, order.output)
    except NotImplementedError:
        stage.recorder.absent("capability export_plain is not offered", "exported")
        return
    with stage.recorder.phase("read exported"):
        view = stage.adapter.read_checkpoint(order.output)
    stage.file("exported", order.output, view)


def exported(rank: Rank, order: Order) -> None:
    """Resume from the file that was made of the sharded checkpoint."""
    stage = set_stage(rank, order)
    assert order.source is not None
    run = stage.start()
    with stage.recorder.phase("load"):
        run.load(order.source)
        run.ready()
    stage.recorder.moment("after load", run)
    stage.close(run)
