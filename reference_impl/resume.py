"""What a checkpoint of a run holds, and the order in which it is put back.

A load reads, then checks and lays out everything on every rank, then changes everything. A
file that does not fit leaves the run as it was, on all ranks or on none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .agreement import agreed, gather, global_rank
from .checkpoint import (
    LoadReport,
    check_hyper_parameters,
    commit_model,
    read_plain,
    save_plain,
    stage_model,
)
from .folder import latest, point_to, retain
from .formats import upgrade
from .optimizer_state import commit_optimizer, export_optimizer, stage_optimizer
from .rng import get_streams, seed_streams, set_streams
from .sharded import DCP, AsyncSaver, PerRank

if TYPE_CHECKING:
    from .trainer import Trainer


def progress(run: Trainer) -> dict[str, Any]:
    """What is neither a tensor nor one rank's own. The cursor counts global batches."""
    return {
        "schedulers": [run.scheduler.state_dict()],
        "global_step": run.global_step,
        "epoch": run.epoch,
        "data": {"epoch": run.epoch, "position": run.position},
        "hyper_parameters": dataclasses.asdict(run.model_config),
        "extra": run.extra,
    }


def streams(run: Trainer) -> dict[str, Any]:
    """This rank's random streams, and the mesh that they belong to."""
    return {"layout": _layout(run), "state": get_streams()}


def plain_payload(run: Trainer) -> dict[str, Any]:
    """Everything that a resume needs, with live tensors. Collective."""
    return {
        # With `keep_vars` a tied pair is one object under two keys, and stays one in the file.
        "model": run.model.state_dict(keep_vars=True),
        "optimizers": [export_optimizer(run.model, run.optimizer)],
        "ema": run.ema.state(),
        **progress(run),
        "streams": gather(streams(run)),
    }


def sharded_state(run: Trainer) -> dict[str, Any]:
    """The same for `DCP.save`, by the live objects."""
    return {
        "model": run.model,
        "optimizer": run.optimizer,
        "ema": run.ema.state(),
        "run": progress(run),
        "streams": PerRank(streams(run)),
    }


def save(run: Trainer, path: Path) -> None:
    """Write the plain checkpoint; during an evaluation, too, with the training weights."""
    with run.ema.training_weights():
        save_plain(plain_payload(run), path)


def save_sharded(run: Trainer, path: Path) -> None:
    """Write the distributed checkpoint."""
    with run.ema.training_weights():
        DCP.save(sharded_state(run), path)


def save_into(run: Trainer, folder: Path, keep: int = 2) -> None:
    """Write the distributed checkpoint of this step, then the pointer, then remove old ones."""
    path = folder / f"step-{run.global_step:08}"
    save_sharded(run, path)
    with agreed(f"cannot tidy {folder}"):
        if global_rank() == 0:
            point_to(folder, path.name)
            retain(folder, keep)


def load_newest(run: Trainer, folder: Path) -> bool:
    """Resume from the newest whole checkpoint of `folder`; False where there is none."""
    found: Path | None = None
    with agreed(f"cannot look into {folder}"):
        if global_rank() == 0:
            found = latest(folder)
    found = gather(found)[0]
    if found is not None:
        load_sharded(run, found)
    return found is not None


def save_sharded_async(run: Trainer, path: Path, saver: AsyncSaver) -> None:
    """Begin the distributed checkpoint; it holds the training weights as they are now."""
    with run.ema.training_weights():
        saver.save(sharded_state(run), path)


def load(run: Trainer, path: Path) -> None:
    """Resume from a plain checkpoint, of any earlier format, too."""
    doing = f"cannot load {path}"
    payload = read_plain(path)
    with agreed(doing):
        payload = upgrade(payload, run.data.steps_per_epoch)
    saved = payload.get("streams", [])
    _restore(run, payload, doing, saved[run.rank] if run.rank < len(saved) else None)


def load_sharded(run: Trainer, path: Path) -> None:
    """Resume from a distributed checkpoint."""
    tree = DCP.read(sharded_state(run), path)
    payload = {
        "model": tree["model"],
        "optimizers": [tree["optimizer"]],
        "ema": tree["ema"],
        **tree["run"],
    }
    _restore(run, payload, f"cannot load {path}", tree["streams"])


def load_pretrained(run: Trainer, path: Path) -> LoadReport:
    """Weights only, not strictly, after the check of the architecture."""
    payload = read_plain(path)
    with agreed(f"cannot transfer from {path}"):
        payload = upgrade(payload, run.data.steps_per_epoch)
        live = dataclasses.asdict(run.model_config)
        check_hyper_parameters(payload.get("hyper_parameters", {}), live)
        staged, report = stage_model(run.model, payload["model"], strict=False)
    commit_model(run.model, staged)
    return report


def _restore(
    run: Trainer, payload: Mapping[str, Any], doing: str, own: Mapping[str, Any] | None
) -> None:
    with agreed(doing):
        model, _ = stage_model(run.model, payload["model"])
        optimizer = stage_optimizer(run.model, run.optimizer, payload["optimizers"][0])
        step, epoch = int(payload["global_step"]), int(payload["epoch"])
        scheduler = _schedule(run, payload.get("schedulers"), step)
        ema = run.ema.stage(payload.get("ema"), model)
        position = int(payload["data"]["position"])
    commit_model(run.model, model)
    commit_optimizer(run.optimizer, optimizer)
    # After the optimizer: constructing a scheduler has written its first rate into the groups,
    # which the optimizer's own saved rate has to replace, not the other way round.
    run.scheduler.load_state_dict(scheduler)
    run.ema.commit(ema)
    run.optimizer.zero_grad(set_to_none=True)
    run.global_step, run.epoch, run.position = step, epoch, position
    run.extra = dict(payload.get("extra", {}))
    # Last: nothing that came before may draw from the resumed streams.
    _resume_streams(run, own)


def _schedule(run: Trainer, saved: Sequence[Mapping[str, Any]] | None, step: int) -> dict[str, Any]:
    """The scheduler's state; for a file without one it follows from the step."""
    if saved:
        return dict(saved[0])
    factors = [factor(step) for factor in run.scheduler.lr_lambdas]
    rates = [base * by for base, by in zip(run.scheduler.base_lrs, factors, strict=True)]
    counted = {"last_epoch": step, "_step_count": step + 1, "_last_lr": rates}
    return {**run.scheduler.state_dict(), **counted}


def _resume_streams(run: Trainer, own: Mapping[str, Any] | None) -> None:
    """Put back this rank's streams where the policy says so and the mesh is the same one.

    On another mesh no rank can go on where one has stopped. All ranks then draw fresh
    streams, the same at every such resume, and none continues an old one beside them.
    """
    restorable = own is not None and own["layout"] == _layout(run)
    if run.config.rng_policy == "restore" and restorable:
        assert own is not None
        set_streams(own["state"])
    else:
        seed_streams(run.config.seed, run.rank, run.epoch, run.global_step)


def _layout(run: Trainer) -> list[tuple[str, int]]:
    return [(name, run.topology.size(name)) for name in run.topology.names]
