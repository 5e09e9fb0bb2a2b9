"""Finding the adapter that ``MOD:ATTR`` or ``path/to/file.py:ATTR`` names."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType

from pytest_cplife.adapter import LifecycleAdapter

_FORMS = "MOD:ATTR (such as mytrainer.cplife:Adapter) or path/to/file.py:ATTR"


class AdapterProblem(Exception):
    """There is no usable adapter under the name given; `problems` says everything that is wrong."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type[AdapterProblem], tuple[tuple[str, ...]]]:
        # Exceptions pickle their args; ours travels between ranks with its problems.
        return AdapterProblem, (self.problems,)


def load_adapter(ref: str, base: Path | None = None) -> type[LifecycleAdapter]:
    """The adapter class that `ref` names.

    Args:
        ref: ``MOD:ATTR`` or ``path/to/file.py:ATTR``. A file is imported under a name that
            depends on its path alone, so that what one process pickles by reference,
            another can find after loading the same `ref`.
        base: the folder that relative modules and paths are meant from; None takes the
            current directory.

    Raises:
        AdapterProblem: there is no such class, or it is not a :class:`LifecycleAdapter`.
    """
    place, attribute = _split(ref)
    base = Path.cwd() if base is None else base
    module = _import_file(base / place) if place.endswith(".py") else _import_name(place, base)
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise AdapterProblem([_missing(module, place, attribute)])
        found = getattr(found, name)
    if not isinstance(found, type):
        hint = (
            f"name its class instead: {place}:{type(found).__name__}"
            if isinstance(found, LifecycleAdapter)
            else "accepted is a class that derives from pytest_cplife.LifecycleAdapter"
        )
        raise AdapterProblem([f"{ref} is {_kind(found)}, not a class; {hint}"])
    if not issubclass(found, LifecycleAdapter):
        raise AdapterProblem(
            [
                f"{ref} is the class {found.__qualname__}, which does not derive from "
                f"pytest_cplife.LifecycleAdapter; write `class {found.__name__}"
                "(LifecycleAdapter):`"
            ]
        )
    return found


def check_adapter(ref: str, base: Path | None = None) -> tuple[str, ...]:
    """Everything that is wrong with the adapter `ref`, each with how to put it right.

    Empty where it has the shape of a :class:`LifecycleAdapter`. The class is instantiated.
    """
    from pytest_cplife.shape import shape_problems

    try:
        adapter = load_adapter(ref, base)
    except AdapterProblem as problem:
        return problem.problems
    return shape_problems(adapter)


def _split(ref: str) -> tuple[str, str]:
    place, colon, attribute = ref.rpartition(":")
    if not colon:
        raise AdapterProblem([f"{ref!r} has no colon; accepted is {_FORMS}"])
    if not place or not all(part.isidentifier() for part in attribute.split(".")):
        raise AdapterProblem([f"{ref!r} cannot be read; accepted is {_FORMS}"])
    return place, attribute


def _import_name(name: str, base: Path) -> ModuleType:
    """Import `name`, also from `base`, which plain ``pytest`` does not search."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise AdapterProblem([f"{name!r} is not the name of a module; accepted is {_FORMS}"])
    _search(base)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module itself may be missing, or something that it imports.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AdapterProblem([_no_module(name, error.name, base)]) from error
        raise AdapterProblem([_import_failed(name, error)]) from error
    except (Exception, SystemExit) as error:
        raise AdapterProblem([_import_failed(name, error)]) from error


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        near = sorted(other.name for other in path.parent.glob("*.py"))
        there = f"; {path.parent} holds {_list(near)}" if near else ""
        raise AdapterProblem([f"there is no file {path}{there}"])
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"cplife_adapter_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    # As for a script, its neighbours can be imported.
    _search(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AdapterProblem([f"{path} cannot be imported"])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        problem = _import_failed(path.name, error)
        if "no known parent package" in str(error):
            problem += "; a file in a package is named by its module, as in package.module:ATTR"
        raise AdapterProblem([problem]) from error
    return module


def _search(folder: Path) -> None:
    entry = str(folder)
    if entry not in sys.path:
        sys.path.insert(0, entry)
        importlib.invalidate_caches()


def _no_module(name: str, missing: str, base: Path) -> str:
    inside = f" (no {missing!r})" if missing != name else ""
    near = get_close_matches(
        missing, [path.stem for path in base.glob("*.py")] + [path.name for path in base.glob("*/")]
    )
    hint = f"; did you mean {_list(near)}?" if near else ""
    return (
        f"there is no module {name!r}{inside}; searched were {base} and the installed "
        f"packages{hint}"
    )


def _import_failed(name: str, error: BaseException) -> str:
    """The error of an import, and the line of the user's code that it came from."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    where = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        where = f" (at {error.filename}:{error.lineno})"
    return f"{name} cannot be imported: {type(error).__name__}: {error}{where}"


def _missing(module: ModuleType, place: str, attribute: str) -> str:
    names = [name for name in vars(module) if not name.startswith("_")]
    adapters = [
        name
        for name in names
        if isinstance(getattr(module, name), type)
        and issubclass(getattr(module, name), LifecycleAdapter)
        and getattr(module, name) is not LifecycleAdapter
    ]
    classes = [name for name in names if isinstance(getattr(module, name), type)]
    near = get_close_matches(attribute, names)
    if adapters:
        hint = f"; it holds the adapter{'s' * (len(adapters) > 1)} {_list(adapters)}"
    elif near:
        hint = f"; did you mean {_list(near)}?"
    elif classes:
        hint = f"; it holds the classes {_list(classes)}, none of them a LifecycleAdapter"
    else:
        hint = "; it holds no class"
    return f"{place} has no {attribute!r}{hint}"


def _kind(found: object) -> str:
    if isinstance(found, ModuleType):
        return "a module"
    return f"an object of type {type(found).__name__}"


def _list(names: list[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
