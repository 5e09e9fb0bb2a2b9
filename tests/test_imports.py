"""Imports run downwards only: who may know whom, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LAYERS = (
    {"mesh", "settings", "adapter", "seeding"},
    {"evidence", "launchers"},
    {"rules"},
    {"loading", "shape", "lookalikes", "scenarios"},
    {"blame", "judging", "session", "suite", "fuzz", "strategies", "adapters"},
    {"expected", "policy", "report"},
    {
        "options",
        "running",
        "replaying",
        "collection",
        "scheduling",
        "actions",
        "hooks",
        "plugin",
        "serving",
        "ending",
        "spmd",
        "selfchecking",
    },
    {"conformance", "selftest"},
)
"""Units of the package, lowest first; a unit may import its own layer and those below it."""

STRANGERS = {
    # Evidence and the ranks that it comes from know nothing of each other.
    "launchers": {"evidence"},
    "evidence": {"launchers"},
    # A rule is a pure function of evidence.
    "rules": {"launchers", "scenarios"},
}

LATE = {
    # The default of a method that users may override, imported when it is called.
    ("adapter", "evidence"),
}

WITHOUT_PYTEST = {"mesh", "settings", "adapter", "evidence", "launchers", "rules"} | {
    "loading",
    "shape",
    "lookalikes",
    "scenarios",
    "session",
    "judging",
    "suite",
    "fuzz",
    "strategies",
    "report",
}


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package and of the two folders that install into it, with its unit."""
    for path in sorted((ROOT / "pytest_cplife").rglob("*.py")):
        unit = path.relative_to(ROOT / "pytest_cplife").parts[0].removesuffix(".py")
        if unit != "__init__":  # it exports names lazily, from anywhere
            yield unit, path
    for unit in ("conformance", "reference_impl"):
        for path in sorted((ROOT / unit).rglob("*.py")):
            yield unit, path


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The full names that the module imports, and whether only when a function is called."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    late = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in typed_only_removed(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, id(node) in late
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            module = ".".join([*package, *([node.module] if node.module else [])])
            for alias in node.names:
                yield f"{module}.{alias.name}", id(node) in late


def typed_only_removed(tree: ast.Module) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``, which never run."""
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        for node in ast.walk(statement)
    }
    return (node for node in ast.walk(tree) if id(node) not in skipped)


def unit_of(name: str) -> str | None:
    """The unit of the package that the imported `name` belongs to."""
    parts = name.split(".")
    if parts[0] in ("conformance", "reference_impl", "tests"):
        return parts[0]
    if parts[0] != "pytest_cplife":
        return None
    return parts[1] if len(parts) > 1 else "__init__"


def rank(unit: str) -> int:
    found = [place for place, layer in enumerate(LAYERS) if unit in layer]
    assert found, f"{unit} has no layer; put it into LAYERS where it belongs"
    return found[0]


def wrong(unit: str, name: str, late: bool) -> bool:
    """Whether `unit` may not import `name`."""
    other = unit_of(name)
    if other is None or other == unit:
        return False
    if other in ("conformance", "reference_impl", "tests"):
        return True
    if unit == "reference_impl":
        return False  # looked at file by file, below
    # The package itself exports its version and, lazily, the names of the lowest layers.
    if name.count(".") == 1 and other not in set().union(*LAYERS):
        return False
    if late and (unit, other) in LATE:
        return False
    return rank(other) > rank(unit) or other in STRANGERS.get(unit, set())


@pytest.mark.parametrize(
    ("unit", "path"),
    [pytest.param(unit, path, id=str(path.relative_to(ROOT))) for unit, path in modules()],
)
def test_imports_run_downwards(unit: str, path: Path) -> None:
    found = list(imports(path))
    assert not [name for name, late in found if wrong(unit, name, late)]
    if unit in WITHOUT_PYTEST:
        assert not [name for name, _ in found if name.split(".")[0] in ("pytest", "_pytest")]


def test_only_the_adapter_of_the_reference_knows_the_protocol() -> None:
    knowing = {
        path.name
        for unit, path in modules()
        if unit == "reference_impl"
        and any(unit_of(name) not in (None, unit) for name, _ in imports(path))
    }
    assert knowing <= {"adapter.py", "__init__.py"}


def test_every_unit_has_its_layer() -> None:
    for unit in {unit for unit, _ in modules()} - {"reference_impl"}:
        rank(unit)


def test_the_directions_are_told_apart() -> None:
    """The functions above can say no."""
    assert wrong("rules", "pytest_cplife.session.Session", False)
    assert wrong("rules", "pytest_cplife.launchers.base", False)
    assert wrong("adapter", "pytest_cplife.evidence.checkpoint", False)
    assert wrong("session", "reference_impl.adapter", False)
    assert not wrong("adapter", "pytest_cplife.evidence.checkpoint", True)
    assert not wrong("session", "pytest_cplife.rules.model", False)
    assert not wrong("hooks", "pytest_cplife.__version__", False)
