"""How the conformance suite drives the trainer: the only module that knows its protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from pytest_cplife.adapter import EmaSpec, LifecycleAdapter, RankContext, TrainingRun
from pytest_cplife.mesh import MeshSpec

from .convert import sharded_to_plain
from .ema import warmed_up
from .model import ModelConfig, build_model
from .plain import realign, to_plain
from .sharded import AsyncSaver
from .topology import Topology, require_process_group
from .trainer import PLACEHOLDERS, Trainer, TrainerConfig
from .wrap import wrap


class Saving:
    """The save that a saver is at, as the suite waits for one."""

    def __init__(self, saver: AsyncSaver) -> None:
        self._saver = saver

    def result(self) -> None:
        self._saver.wait()


class Run(TrainingRun):
    """One live run of the reference trainer."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.model = trainer.model
        self.optimizers = [trainer.optimizer]
        self.schedulers = [trainer.scheduler]
        self.ema = trainer.ema.shadow

    @property
    def global_step(self) -> int:  # type: ignore[override]
        return self.trainer.global_step

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return self.trainer.epoch

    def train(self, num_steps: int) -> list[float]:
        return self.trainer.train(num_steps)

    def save(self, path: Path) -> None:
        self.trainer.save(path)

    def load(self, path: Path) -> None:
        self.trainer.load(path)

    def save_sharded(self, path: Path) -> None:
        self.trainer.save_sharded(path)

    def load_sharded(self, path: Path) -> None:
        self.trainer.load_sharded(path)

    def save_sharded_async(self, path: Path) -> Saving:
        saver = self.trainer.save_sharded_async(path)
        return Saving(saver)

    def save_into(self, folder: Path) -> None:
        self.trainer.save_into(folder)

    def load_newest(self, folder: Path) -> bool:
        return self.trainer.load_newest(folder)

    def close(self) -> None:
        self.trainer.close()

    def ema_weights(self) -> AbstractContextManager[None]:
        return self.trainer.ema.weights()

    def update_ema(self) -> None:
        self.trainer.ema.update()

    def predict(self) -> Tensor:
        return self.trainer.predict()

    def sample_ids(self) -> Sequence[int]:
        return self.trainer.last_ids

    def control_scalars(self) -> Mapping[str, float]:
        return {"recycles": float(self.trainer.recycles)}

    def named_extra_state(self) -> Mapping[str, object]:
        return {
            "data": {"epoch": self.trainer.epoch, "position": self.trainer.position},
            "extra": self.trainer.extra,
        }


class Adapter(LifecycleAdapter):
    """The reference trainer, in the form that the suite asks for."""

    framework = "torch (reference implementation)"
    checkpoint_format = "torch.save, one file of plain tensors"
    meshes = ("dp=1", "cp=2", "dp=2,cp=2", "fsdp=2", "fsdp=2,tp=2")
    placeholders = PLACEHOLDERS
    rng_policy: Literal["restore", "offset", "none"] = "offset"
    steps_per_epoch = 4
    payload_objects = True  # `Trainer.extra` takes whatever a user wants to find again
    config = TrainerConfig()
    ema_spec = EmaSpec(decay=warmed_up(TrainerConfig.ema_decay))

    def build_serial_model(self) -> nn.Module:
        return build_model(ModelConfig(), seed=self.config.initial_weights)

    def start(self, ctx: RankContext) -> Run:
        if not ctx.serial:
            require_process_group()
        topology = Topology(None if ctx.serial else ctx.mesh)
        config = dataclasses.replace(self.config, seed=ctx.seed)
        return Run(Trainer(config, topology, ctx.device, ctx.rank))

    def wrap(self, module: nn.Module, ctx: RankContext) -> nn.Module:
        if not ctx.serial:
            require_process_group()
        topology = Topology(None if ctx.serial else ctx.mesh)
        return wrap(module, topology, ctx.device, PLACEHOLDERS)

    def placement_plan(self, spec: MeshSpec) -> Mapping[str, Mapping[str, str]]:
        # In words of its own, not asked of `Topology`: a plan that follows the code is always kept.
        default = {"dp": "R", "fsdp": "S(0)", "cp": "R", "tp": "R"}
        cut_by_tp = {
            "attention.qkv.weight": ("S(0)", "S(1)"),
            "attention.out.weight": ("S(1)", "S(0)"),
            "mlp.up.weight": ("S(0)", "S(1)"),
            "mlp.up.bias": ("S(0)", "R"),
            "mlp.mid.weight": ("S(1)", "S(0)"),
        }
        plan = {"": default}
        if "tp" in spec.names:
            for block in range(ModelConfig().blocks):
                for name, (tp, fsdp) in cut_by_tp.items():
                    plan[f"blocks.{block}.{name}"] = {**default, "tp": tp, "fsdp": fsdp}
        return {
            prefix: {name: placed[name] for name in spec.names} for prefix, placed in plan.items()
        }

    def load_pretrained(self, run: TrainingRun, path: Path) -> None:
        assert isinstance(run, Run)
        run.trainer.load_pretrained(path)

    def export_plain(self, path: Path, out: Path) -> None:
        sharded_to_plain(path, out)

    def to_plain(self, tree: Any) -> Any:
        return to_plain(tree)

    def realign(self, tree: Any, template: Any) -> Any:
        return realign(tree, template)


class RestoreAdapter(Adapter):
    """The same trainer with streams that a resume puts back."""

    rng_policy = "restore"
    config = TrainerConfig(rng_policy="restore")
