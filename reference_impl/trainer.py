"""The training loop, and the order of the lifecycle around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from . import resume
from .checkpoint import LoadReport
from .data import Data
from .ema import Ema, warmed_up
from .gradients import clip_gradients, reduce_gradients
from .model import ModelConfig, build_model
from .optimizer_state import align_optimizer
from .plain import outside_inference
from .rng import seed_streams, shared_integer
from .sharded import AsyncSaver
from .topology import Topology
from .wrap import wrap

PLACEHOLDERS = ("aux_head",)
RngPolicy = Literal["offset", "restore"]


@dataclasses.dataclass(frozen=True)
class TrainerConfig:
    """The run's settings; the model's are its own."""

    seed: int = 0
    initial_weights: int = 0
    learning_rate: float = 0.02
    weight_decay: float = 0.1
    max_norm: float = 1.0
    accumulation: int = 1
    rng_policy: RngPolicy = "offset"
    ema_decay: float = 0.9


def learning_rate_factor(step: int) -> float:
    """Warm-up over eight steps, then a slow decay: another value at every step."""
    return min(1.0, (step + 1) / 8) / (1.0 + 0.01 * step)


class Trainer:
    """Trains the sequence model on a mesh, or serially on a topology without one."""

    def __init__(
        self,
        config: TrainerConfig,
        topology: Topology,
        device: torch.device,
        rank: int = 0,
        model_config: ModelConfig | None = None,
    ) -> None:
        self.config = config
        self.topology = topology
        self.device = device
        self.rank = rank
        self.model_config = model_config or ModelConfig()
        # The model, then its distribution, and only then the optimizer: it must hold the very
        # parameters that the model ends up with.
        model = build_model(self.model_config, seed=config.initial_weights)
        self.model: nn.Module = wrap(model, topology, device, PLACEHOLDERS)
        self.optimizer = torch.optim.AdamW(
            self._parameter_groups(), lr=config.learning_rate, foreach=False
        )
        self.scheduler = LambdaLR(self.optimizer, learning_rate_factor)
        # An average of shards is right here: it is updated locally, saved gathered, and loaded
        # by template.
        self.ema = Ema(self.model, warmed_up(config.ema_decay), sharded=True)
        self.data = Data(self.model_config.vocabulary, self.model_config.length, config.seed)
        self.global_step = 0
        self.epoch = 0
        self.position = 0
        self.recycles = 1
        self.last_ids: Sequence[int] = ()
        self.extra: dict[str, object] = {}
        self._saver: AsyncSaver | None = None
        seed_streams(config.seed, rank, self.epoch, self.global_step)

    # -- training --------------------------------------------------------------------

    def train(self, num_steps: int) -> list[float]:
        """Make `num_steps` optimizer steps; their losses, equal on all ranks."""
        return [self._step() for _ in range(num_steps)]

    def _step(self) -> float:
        if self.ema.swapped:
            raise RuntimeError("cannot train: the model holds the averaged weights")
        batch = self.data.batch(self.epoch, self.position)
        inputs, targets = self._local(batch.tokens), self._local(batch.targets)
        self.last_ids = self._local(batch.ids.unsqueeze(1)).flatten().tolist()
        draw = shared_integer(self.config.seed, self.rank, self.global_step, 1, 3)
        # Ranks that disagree on the number of passes would wait for each other's collectives.
        self.recycles = self.topology.broadcast(draw)

        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        pairs = zip(
            inputs.tensor_split(self.config.accumulation),
            targets.tensor_split(self.config.accumulation),
            strict=True,
        )
        for tokens, wanted in pairs:
            # A sum over this rank's tokens by the global count: terms over the ranks and the
            # micro-batches add up to the global mean, also where they are not equally large.
            logits = self.model(tokens, self.recycles)
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
            loss = loss / batch.targets.numel()
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        reduce_gradients(self.model.parameters())
        clip_gradients(self.model.parameters(), self.config.max_norm)
        align_optimizer(self.optimizer)
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update()  # once per optimizer step, not per micro-batch

        self.global_step += 1
        self.position += 1
        if self.position == self.data.steps_per_epoch:
            self.epoch, self.position = self.epoch + 1, 0
        return float(self.topology.sum_over_tokens(total).item())

    @outside_inference
    def predict(self) -> Tensor:
        """Logits for a fixed batch, whole on every rank; no random stream notices."""
        config = self.model_config
        rows, columns = torch.arange(8).unsqueeze(1), torch.arange(config.length)
        tokens = self._local((3 * rows + columns) % config.vocabulary)
        training = self.model.training
        self.model.eval()
        try:
            logits = self.model(tokens)
        finally:
            self.model.train(training)
        return self.topology.whole(logits, (8, config.length, config.vocabulary)).cpu()

    # -- checkpoints: what is in them, and the order of putting it back, is `resume`'s ---

    def save(self, path: Path) -> None:
        """Write the plain checkpoint `path`, one portable file. Collective."""
        resume.save(self, path)

    def load(self, path: Path) -> None:
        """Resume from the plain checkpoint `path`, of any topology. Collective."""
        resume.load(self, path)

    def save_sharded(self, path: Path) -> None:
        """Write the distributed checkpoint `path`, a directory. Collective."""
        resume.save_sharded(self, path)

    def load_sharded(self, path: Path) -> None:
        """Resume from the distributed checkpoint `path`, of any topology. Collective."""
        resume.load_sharded(self, path)

    def save_into(self, folder: Path) -> None:
        """Write a distributed checkpoint of this step into `folder`. Collective."""
        resume.save_into(self, folder)

    def load_newest(self, folder: Path) -> bool:
        """Resume from the newest whole checkpoint of `folder`, if there is one. Collective."""
        return resume.load_newest(self, folder)

    def save_sharded_async(self, path: Path) -> AsyncSaver:
        """Begin the distributed checkpoint `path`; the saver waits for it. Collective."""
        if self._saver is None:
            self._saver = AsyncSaver()
        resume.save_sharded_async(self, path, self._saver)
        return self._saver

    def close(self) -> None:
        """End what runs in the background."""
        if self._saver is not None:
            self._saver.close()

    def load_pretrained(self, path: Path) -> LoadReport:
        """Take over the weights of `path` that this model has, if it is the same architecture."""
        return resume.load_pretrained(self, path)

    def _local(self, whole: Tensor) -> Tensor:
        return self.topology.local_part(whole.to(self.device))

    def _parameter_groups(self) -> list[dict[str, Any]]:
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        return [
            {
                "params": [p for p in trainable if p.ndim > 1],
                "weight_decay": self.config.weight_decay,
            },
            {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
        ]
