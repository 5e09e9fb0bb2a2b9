"""Modules that are not ported to the mesh yet: their parameters live on, their forward does not.

A placeholder has the parameters, buffers and children of the module it stands for under the
same names, without a prefix of its own, so that the keys in a checkpoint are the serial
model's and nothing has to be renamed the day the module is ported.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NoReturn

from torch import nn


class Placeholder(nn.Module):
    """Keeps a module's state, frozen; calling it names what is missing."""

    def __init__(self, module: nn.Module, fqn: str) -> None:
        super().__init__()
        self.fqn = fqn
        self.stands_for = type(module).__name__
        persistent = module.state_dict(keep_vars=True).keys()
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            parameter.requires_grad_(False)
            self.register_parameter(name, parameter)
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            self.register_buffer(name, buffer, persistent=name in persistent)
        for name, child in module.named_children():
            self.add_module(name, Placeholder(child, f"{fqn}.{name}"))
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"module {self.fqn!r} ({self.stands_for}) is not ported to the mesh: it is a"
            " placeholder that only carries its parameters through checkpoints"
        )

    def extra_repr(self) -> str:
        return f"{self.fqn!r} for {self.stands_for}"


def replace_with_placeholders(model: nn.Module, fqns: Collection[str]) -> None:
    """Put placeholders where `fqns` say, in place, keeping the order of registration.

    Raises:
        AttributeError: the model has no such module.
    """
    for fqn in fqns:
        parent, _, name = fqn.rpartition(".")
        owner = model.get_submodule(parent)
        setattr(owner, name, Placeholder(model.get_submodule(fqn), fqn))


def placeholder_names(model: nn.Module) -> tuple[str, ...]:
    """FQNs of the outermost placeholders, in order."""
    found = [name for name, module in model.named_modules() if isinstance(module, Placeholder)]
    return tuple(n for n in found if not any(n.startswith(f"{other}.") for other in found))
