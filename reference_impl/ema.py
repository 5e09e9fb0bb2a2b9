"""An exponential moving average of the weights that is right under DTensor.

What it averages: every parameter, by FQN, one name per tied pair. Buffers are not averaged;
the live ones serve both sets of weights (a counter has no average, a table none that differs).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from .plain import realign_tensor

Decay = Callable[[int], float]


def warmed_up(limit: float) -> Decay:
    """A decay that follows the number n of the update: (1 + n) / (10 + n), up to `limit`."""
    return lambda update: min(limit, (1 + update) / (10 + update))


@dataclass(frozen=True)
class StagedEma:
    """An average that fits, ready to be put in."""

    shadow: dict[str, Tensor]
    updates: int


class Ema:
    """The average, and the exchange of weights for an evaluation.

    `torch.optim.swa_utils.AveragedModel` would deep-copy the model, which FSDP2 refuses, and
    its foreach update refuses lists that mix DTensors and tensors. Here each pair has one
    placement and the arithmetic is local, which is exact since it is elementwise.

    Args:
        decay: the factor of the old average at the n-th update, from 1.
        sharded: the caller knows that parameters are sharded. A guard: an average that was
            written for replicas and is saved by one rank holds one rank's part.
    """

    def __init__(self, model: nn.Module, decay: Decay, sharded: bool = False) -> None:
        self.model = model
        self.decay = decay
        self.updates = 0
        self.shadow: dict[str, Tensor] = {}
        self._backup: dict[str, Tensor] | None = None
        with torch.inference_mode(False), torch.no_grad():
            for fqn, parameter in model.named_parameters():
                self._check_placements(fqn, parameter, sharded)
                # Low precision stands still: at decay 0.999 a bfloat16 sum never moves.
                wide = torch.promote_types(parameter.dtype, torch.float32)
                self.shadow[fqn] = parameter.detach().clone().to(wide)

    @staticmethod
    def _check_placements(fqn: str, parameter: Tensor, sharded: bool) -> None:
        if not isinstance(parameter, DTensor):
            return
        if any(placement.is_partial() for placement in parameter.placements):
            raise ValueError(f"{fqn!r} is {parameter.placements}: a Partial term has no average")
        if not sharded and not all(place.is_replicate() for place in parameter.placements):
            raise ValueError(
                f"{fqn!r} is {parameter.placements}: say sharded=True if the average is to be"
                " saved gathered and loaded by template"
            )

    def update(self) -> None:
        """Take the current weights into the average."""
        self._refuse_swapped("update the average")
        self.updates += 1
        weight = 1.0 - self.decay(self.updates)
        # Tensors made under inference mode could never be updated outside of it again.
        with torch.inference_mode(False), torch.no_grad():
            for fqn, parameter in self.model.named_parameters():
                mine, theirs = self._local_pair(fqn, parameter)
                # lerp, not d * e + (1 - d) * p: of a weight that stands still the average
                # stands still, bit for bit.
                mine.lerp_(theirs.to(mine.dtype), weight)

    def _local_pair(self, fqn: str, parameter: Tensor) -> tuple[Tensor, Tensor]:
        shadow = self.shadow[fqn]
        if not isinstance(parameter, DTensor):
            return shadow, parameter.detach()
        if not isinstance(shadow, DTensor) or (
            shadow.placements != parameter.placements or shadow.device_mesh != parameter.device_mesh
        ):
            raise ValueError(f"{fqn!r} and its average are laid out differently")
        return shadow.to_local(), parameter.to_local().detach()

    # -- evaluation ------------------------------------------------------------------

    @property
    def swapped(self) -> bool:
        """True while the model holds the averaged weights."""
        return self._backup is not None

    @contextmanager
    def weights(self) -> Iterator[None]:
        """Inside the block the model holds the averaged weights, whatever ends the block.

        Values are copied into the live parameters, so mesh, placements and identity stay;
        this rank's training values wait on the CPU.
        """
        self._refuse_swapped("swap the average in")
        self._swap_in()
        try:
            yield
        finally:
            self._swap_out()

    @contextmanager
    def training_weights(self) -> Iterator[None]:
        """Inside the block the model holds the training weights, also within `weights`.

        For a checkpoint that is written during an evaluation.
        """
        was_swapped = self.swapped
        if was_swapped:
            self._swap_out()
        try:
            yield
        finally:
            if was_swapped:
                self._swap_in()

    def _swap_in(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            pairs = {
                fqn: self._local_pair(fqn, parameter)
                for fqn, parameter in self.model.named_parameters()
            }
            self._backup = {fqn: live.to("cpu", copy=True) for fqn, (_, live) in pairs.items()}
            try:
                for average, live in pairs.values():
                    live.copy_(average)
            except BaseException:
                self._swap_out()  # part of the weights is the average already
                raise

    def _swap_out(self) -> None:
        assert self._backup is not None
        with torch.inference_mode(False), torch.no_grad():
            for fqn, parameter in self.model.named_parameters():
                self._local_pair(fqn, parameter)[1].copy_(self._backup[fqn])
        self._backup = None

    def _refuse_swapped(self, what: str) -> None:
        if self.swapped:
            raise RuntimeError(f"cannot {what}: the model holds the averaged weights already")

    # -- checkpoints -----------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The live average and its count, for a checkpoint."""
        return {"updates": self.updates, "shadow": dict(self.shadow)}

    def stage(self, saved: Mapping[str, Any] | None, weights: Mapping[str, Tensor]) -> StagedEma:
        """`saved` in the layout of the live average; nothing is changed yet.

        Args:
            saved: what `state` gave, None for a file without an average.
            weights: the weights that are being loaded, laid out like the parameters: the start
                of an average that the file does not have.

        Raises:
            ValueError: a shape does not fit.
            RuntimeError: the averaged weights are swapped in.
        """
        self._refuse_swapped("load")
        known = {} if saved is None else saved["shadow"]
        missing = [fqn for fqn in self.shadow if fqn not in known]
        unknown = [fqn for fqn in known if fqn not in self.shadow]
        if missing:
            warnings.warn(f"no average of {missing}: begun from the loaded weights", stacklevel=2)
        if unknown:
            warnings.warn(f"averages of no parameter are left out: {unknown}", stacklevel=2)
        shadow: dict[str, Tensor] = {}
        for fqn, live in self.shadow.items():
            value = known.get(fqn, weights[fqn])
            try:
                shadow[fqn] = realign_tensor(value.detach(), live, alias=True).to(live.dtype)
            except ValueError as error:
                raise ValueError(f"the average of {fqn!r}: {error}") from None
        return StagedEma(shadow, 0 if saved is None else int(saved["updates"]))

    def commit(self, staged: StagedEma) -> None:
        """Put a staged average in, in place."""
        with torch.inference_mode(False), torch.no_grad():
            for fqn, live in self.shadow.items():
                value = staged.shadow[fqn]
                mine = live.to_local() if isinstance(live, DTensor) else live
                mine.copy_(value.to_local() if isinstance(value, DTensor) else value)
        self.updates = staged.updates
