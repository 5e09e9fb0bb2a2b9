"""Whether a class has the shape of a :class:`LifecycleAdapter`, and all that is wrong if not.

A subclass whose method is missing or whose attribute is a string where a tuple belongs
would fail later, on every mesh and under another name; here it is said once.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

from pytest_cplife.adapter import EmaSpec, LifecycleAdapter, TrainingRun
from pytest_cplife.mesh import MeshSpec

LAUNCHER_NAMES = tuple(LifecycleAdapter.launchers)
_RNG_POLICIES = ("restore", "offset", "none")
_SAVE_POINTS = ("any", "epoch_end")


def shape_problems(cls: type[LifecycleAdapter]) -> tuple[str, ...]:
    """Everything wrong with `cls`, in the order in which to mend it."""
    name = cls.__qualname__
    problems = [f"{name} {problem}" for problem in _missing_methods(cls)]
    # Where the instance cannot be had, its class tells as much as it can.
    subject: object = cls
    if not inspect.isabstract(cls):
        try:
            subject = cls()
        except (Exception, SystemExit) as error:
            problems.append(f"{name}{_constructor_problem(error)}")
    problems += [f"{name} {problem}" for problem in _signatures(cls)]
    problems += [f"{name}.{problem}" for problem in _attributes(subject)]
    run = _declared_run(cls)
    if run is not None:
        problems += [f"{run.__qualname__} {problem}" for problem in _missing_methods(run)]
    return tuple(problems)


def sound_adapter(cls: type[LifecycleAdapter]) -> LifecycleAdapter | None:
    """An instance of `cls`; None where something is wrong with its shape."""
    return None if shape_problems(cls) else cls()


def _missing_methods(cls: type) -> Iterator[str]:
    base = TrainingRun if issubclass(cls, TrainingRun) else LifecycleAdapter
    own = [name for name in dir(cls) if not name.startswith("_") and not hasattr(base, name)]
    for name in sorted(getattr(cls, "__abstractmethods__", ())):
        near = get_close_matches(name, own, n=1)
        hint = f" (its {near[0]!r} is no method of the protocol)" if near else ""
        yield f"lacks the method `{name}{inspect.signature(getattr(cls, name))}`{hint}"


def _constructor_problem(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # One frame is our own call: the arguments did not fit.
    if isinstance(error, TypeError) and len(frames) == 1:
        return f"() needs arguments ({error}); the suite builds it with none, give them defaults"
    last = frames[-1]
    return (
        f"() raises {type(error).__name__}: {error} (at {last.filename}:{last.lineno}: "
        f"{last.line}); the suite builds it once per rank and scenario"
    )


def _signatures(cls: type[LifecycleAdapter]) -> Iterator[str]:
    """Methods that cannot be called as the suite calls them."""
    for name, method in inspect.getmembers(LifecycleAdapter, inspect.isfunction):
        own = inspect.getattr_static(cls, name)
        if name.startswith("_") or own is method:
            continue
        if not callable(own) and not isinstance(own, staticmethod | classmethod):
            yield f"has {name!r} as {_shown(own)}, where a method belongs"
            continue
        wanted = [p for p in inspect.signature(method).parameters if p != "self"]
        # Looked up on the class, a plain function still takes its instance.
        instance = [] if isinstance(own, staticmethod | classmethod) else ["self"]
        problem = _call_problem(getattr(cls, name), instance + wanted)
        if problem:
            yield (
                f"has a method `{name}` that cannot be called as `{name}({', '.join(wanted)})`: "
                f"{problem}"
            )


def _call_problem(method: Callable[..., Any], arguments: list[str]) -> str:
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError as error:
        return str(error)
    except ValueError:  # a callable without a signature to read
        return ""
    return ""


def _attributes(subject: object) -> Iterator[str]:
    checks: dict[str, Callable[[Any], str]] = {
        "framework": _text,
        "checkpoint_format": _text,
        "meshes": _meshes,
        "placeholders": _prefixes,
        "plain_parameters": _prefixes,
        "launchers": _launchers,
        "rng_policy": lambda value: _one_of(value, _RNG_POLICIES),
        "save_points": lambda value: _one_of(value, _SAVE_POINTS),
        "steps_per_epoch": _steps,
        "payload_objects": _objects,
        "ema_spec": _ema,
        "live_load": _flag,
        "initialises_process_group": _flag,
        "bitwise_resume": _flag,
    }
    values: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            values[name] = value = getattr(subject, name)
        except Exception as error:
            yield f"{name} raises {type(error).__name__}: {error}"
            continue
        if isinstance(value, property):  # on a class that cannot be built
            continue
        accepted = check(value)
        if accepted:
            yield f"{name} is {_shown(value)}; accepted is {accepted}"
    if values.get("save_points") == "epoch_end" and values.get("steps_per_epoch") is None:
        yield "steps_per_epoch is None; save_points = 'epoch_end' needs the number of steps"


def _text(value: Any) -> str:
    return "" if isinstance(value, str) and value else "a string"


def _flag(value: Any) -> str:
    return "" if isinstance(value, bool) else "True or False"


def _one_of(value: Any, accepted: tuple[str, ...]) -> str:
    return "" if value in accepted else " or ".join(map(repr, accepted))


def _meshes(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        return "a sequence of meshes, such as ('dp=1', 'dp=2,cp=2')"
    for mesh in value:
        try:
            MeshSpec.parse(mesh)
        except ValueError as error:
            return str(error)
    return ""


def _prefixes(value: Any) -> str:
    if _is_collection_of_text(value):
        return ""
    again = f"; write ({value!r},)" if isinstance(value, str) else ""
    return f"a collection of names{again}"


def _objects(value: Any) -> str:
    named = _is_collection_of_text(value) and all("." in name for name in value)
    if isinstance(value, bool) or named:
        return ""
    return "True, False or a collection of qualified names, such as ('mytrainer.state.Callbacks',)"


def _launchers(value: Any) -> str:
    if _is_collection_of_text(value) and value and set(value) <= set(LAUNCHER_NAMES):
        return ""
    return f"a collection with some of {', '.join(map(repr, LAUNCHER_NAMES))}"


def _is_collection_of_text(value: Any) -> bool:
    return (
        isinstance(value, Collection)
        and not isinstance(value, str)
        and all(isinstance(item, str) for item in value)
    )


def _steps(value: Any) -> str:
    sound = value is None or (isinstance(value, int) and value is not True and value >= 1)
    return "" if sound else "None or a whole number from 1"


def _ema(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, EmaSpec):
        return "None or an EmaSpec"
    hints = get_type_hints(EmaSpec)
    for name in ("init", "float_buffers", "integer_buffers"):
        choices = get_args(hints[name])
        if getattr(value, name) not in choices:
            return f"an EmaSpec whose {name} is {' or '.join(map(repr, choices))}"
    if not callable(value.decay) and not 0 <= value.decay <= 1:
        return "an EmaSpec whose decay is a function, or a number from 0 to 1"
    if value.every < 1 or value.start_step < 0:
        return "an EmaSpec whose every is at least 1 and start_step at least 0"
    return ""


def _declared_run(cls: type[LifecycleAdapter]) -> type[TrainingRun] | None:
    """The class of run that `start` says it returns, so that its gaps show before any rank runs."""
    try:
        declared = inspect.get_annotations(cls.start, eval_str=True).get("return")
    except Exception:  # an annotation that cannot be evaluated says nothing, and need not
        return None
    if isinstance(declared, type) and issubclass(declared, TrainingRun):
        return None if declared is TrainingRun else declared
    return None


def _shown(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
