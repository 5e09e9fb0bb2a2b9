"""Writes the golden files: what the trainer's checkpoints looked like in earlier formats.

They are in the repository so that they stay what they were; this script says how they came
to be and is run again only for a new format: ``python -m tests.reference.make_golden``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.optimizer_state import export_optimizer
from pytest_cplife.reference_impl.plain import to_plain
from pytest_cplife.reference_impl.trainer import Trainer
from torch import Tensor

from .ranks import full_state, run_ranks, run_serial, trainer

FOLDER = Path(__file__).parent / "golden"
STEPS = 5


def digest(tensor: Tensor) -> str:
    """A short digest of a full tensor's values."""
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def digests(run: Trainer) -> dict[str, str]:
    return {name: digest(value) for name, value in full_state(run).items()}


def serial_formats() -> dict[str, Any]:
    """Formats 0 and 1: before there was a mesh."""
    run = trainer("")
    run.train(STEPS)
    model = run.model.state_dict()
    numbered = run.optimizer.state_dict()  # torch's layout: parameters are numbers
    torch.save({"state_dict": model, "optimizer": numbered, "step": STEPS}, FOLDER / "format-0.pt")
    payload = {
        "format_version": 1,
        "model": model,
        "optimizer": numbered,
        "scheduler": run.scheduler.state_dict(),
        "ema": to_plain(run.ema.state()),
        "global_step": run.global_step,
        "epoch": run.epoch,
        "data": {"epoch": run.epoch, "position": run.position},
        "hyper_parameters": dataclasses.asdict(run.model_config),
    }
    torch.save(payload, FOLDER / "format-1.pt")
    return digests(run)


def dtensor_format() -> dict[str, Any] | None:
    """Format 2: the first one of the mesh, with DTensors as rank 0 had them."""
    run = trainer("cp=2")
    run.train(STEPS)
    wanted = digests(run)
    if dist.get_rank() == 0:
        payload = {
            "format_version": 2,
            "model": run.model.state_dict(),
            "optimizers": [export_optimizer(run.model, run.optimizer)],
            "schedulers": [run.scheduler.state_dict()],
            "ema": run.ema.state(),
            "global_step": run.global_step,
            "epoch": run.epoch,
            "data": {"epoch": run.epoch, "position": run.position},
        }
        torch.save(payload, FOLDER / "format-2.pt")
    return wanted


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    serial = run_serial(serial_formats)
    mesh = run_ranks(2, dtensor_format)[0]
    known = {"format-0": serial, "format-1": serial, "format-2": mesh}
    (FOLDER / "digests.json").write_text(json.dumps(known, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
