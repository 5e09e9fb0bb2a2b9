"""Draws from random generators of a trainer's own, which nobody else can seed."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class OwnDraws(TorchFunctionMode):
    """Inside the block notes what is drawn from generators that are not torch's own.

    The global streams can be seeded from outside and made other ones; a generator that a trainer
    keeps to itself, or makes anew for each step, cannot. It draws noise as well as data, so that
    what counts is whether another mesh draws the same.

    Attributes:
        states: digests of the states that were drawn from.
    """

    def __init__(self) -> None:
        super().__init__()
        self.states: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        own = kwargs.get("generator")
        if own is not None and own is not torch.default_generator:
            state = own.get_state().numpy().tobytes()
            self.states.add(hashlib.blake2b(state, digest_size=8).hexdigest())
        return func(*args, **kwargs)
