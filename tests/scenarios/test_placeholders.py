"""Calling modules that are not ported yet, whatever they ask for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_cplife.scenarios.placeholders import call_placeholders


class Refusing(nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor, scale: float = 1.0) -> None:
        raise NotImplementedError("not ported")


class Greedy(nn.Module):
    """Looks at its arguments first, which a placeholder must not."""

    def forward(self, x: Any) -> Any:
        if x.shape:
            raise NotImplementedError
        return x


class Bare(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError


class Working(nn.Module):
    def forward(self, x: Any = None) -> Any:
        assert not torch.is_grad_enabled()
        return x


@pytest.fixture
def model() -> nn.Module:
    parts = {"refusing": Refusing(), "greedy": Greedy(), "bare": Bare(), "working": Working()}
    return nn.ModuleDict({"trunk": nn.ModuleDict(parts)})


@pytest.mark.parametrize(
    ("prefix", "seen"),
    [
        ("trunk.refusing", "NotImplementedError: not ported"),
        ("trunk.refusing.", "NotImplementedError: not ported"),
        ("trunk.bare", "NotImplementedError: "),
        ("trunk.greedy", "AttributeError: 'NoneType' object has no attribute 'shape'"),
        ("trunk.working", "returned"),
        ("trunk.nothing", ""),
        ("working", ""),
    ],
)
def test_what_calling_does(model: nn.Module, prefix: str, seen: str) -> None:
    assert call_placeholders(model, [prefix]) == {prefix: seen}


def test_a_parent_of_modules_has_no_forward(model: nn.Module) -> None:
    (seen,) = call_placeholders(model, ["trunk"]).values()
    assert seen.startswith("NotImplementedError")


def test_nothing_declared_calls_nothing(model: nn.Module) -> None:
    assert call_placeholders(model, ()) == {}


def test_hooks_around_a_module_are_not_run(model: nn.Module) -> None:
    """FSDP takes the first module that is called for the root of the model, for good."""
    calls: list[str] = []
    module = model.get_submodule("trunk.refusing")
    module.register_forward_pre_hook(lambda *_: calls.append("hook"))
    call_placeholders(model, ["trunk.refusing"])
    assert calls == []
