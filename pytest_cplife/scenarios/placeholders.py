"""Calling the modules that an adapter declares as not ported yet."""

from __future__ import annotations

import inspect
from collections.abc import Collection

import torch


def call_placeholders(model: torch.nn.Module, prefixes: Collection[str]) -> dict[str, str]:
    """By prefix, what calling the module did: ``"NotImplementedError: ..."`` if it is right.

    The arguments are None for every parameter that has no default: a placeholder must refuse
    before it looks at them. A prefix without a module gives ``""``.
    """
    modules = dict(model.named_modules())
    return {prefix: _call(modules.get(prefix.rstrip("."))) for prefix in prefixes}


def _call(module: torch.nn.Module | None) -> str:
    if module is None:
        return ""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    required = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    named = {p.name: None for p in parameters if p.default is p.empty and p.kind is p.KEYWORD_ONLY}
    try:
        with torch.no_grad():
            # Not module(...): FSDP's hooks take the first module that is called for the root, and
            # the model itself could not run any more.
            module.forward(*(None for _ in required), **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "returned"
