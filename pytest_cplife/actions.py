"""What the plugin can be asked instead of running tests."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest


def rules(id: str) -> str:
    """The list of rules, or all about the rule `id`."""
    from pytest_cplife.report.catalogue import explain_rule, list_rules
    from pytest_cplife.rules.registry import all_rules, get_rule

    if not id:
        return list_rules(all_rules())
    try:
        return explain_rule(get_rule(id.upper()))
    except KeyError as error:
        raise pytest.UsageError(f"--cplife-rules: {error.args[0]}") from None


def new_adapter(path: Path) -> str:
    """Write a template of an adapter to `path`, which must not exist yet."""
    if path.suffix != ".py":
        raise pytest.UsageError(f"--cplife-new-adapter={path}: accepted is a path that ends in .py")
    text = files("pytest_cplife").joinpath("templates/adapter.py.txt").read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise pytest.UsageError(f"--cplife-new-adapter: {path} exists; it is left alone") from None
    except OSError as error:
        raise pytest.UsageError(f"--cplife-new-adapter: {path}: {error.strerror}") from None
    return f"wrote {path}; judge it with: pytest --cplife-adapter={path}:Adapter"
