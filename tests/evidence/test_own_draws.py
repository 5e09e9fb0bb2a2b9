"""What is drawn from a trainer's own generators is noted, and left as it is."""

from __future__ import annotations

import torch

from pytest_cplife.evidence.own_draws import OwnDraws


def drawn(seed: int, *, listened: bool) -> tuple[list[float], set[str]]:
    """Two draws from a generator of one's own and two from the global stream."""
    own = torch.Generator().manual_seed(seed)
    torch.manual_seed(0)
    draws = OwnDraws()

    def draw() -> list[float]:
        noise = torch.randn(2, generator=own)
        noise += torch.empty(2).uniform_(generator=own)
        noise += torch.rand(2) + torch.rand(2, generator=torch.default_generator)
        values: list[float] = noise.tolist()
        return values

    if not listened:
        return draw(), draws.states
    with draws:
        return draw(), draws.states


def test_draws_are_noted_and_not_changed() -> None:
    values, states = drawn(1, listened=True)
    assert len(states) == 2
    assert values == drawn(1, listened=False)[0]


def test_states_tell_generators_apart() -> None:
    one, again, other = (drawn(seed, listened=True)[1] for seed in (1, 1, 2))
    assert one == again
    assert not one & other
