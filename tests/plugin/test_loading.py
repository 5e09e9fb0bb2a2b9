"""Every way in which an adapter can be unusable has a message that says what to do."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_cplife.loading import AdapterProblem, check_adapter, load_adapter
from pytest_cplife.shape import sound_adapter

SOUND = """
from pytest_cplife import EmaSpec, LifecycleAdapter, TrainingRun

class Adapter(LifecycleAdapter):
    def build_serial_model(self): ...
    def start(self, ctx): ...
"""


@pytest.fixture(autouse=True)
def restore_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("cplife_adapter_", "mine")):
            del sys.modules[name]


def write(folder: Path, body: str, name: str = "mine.py") -> Path:
    path = folder / name
    path.write_text(SOUND + body)
    return path


def problems(folder: Path, body: str) -> str:
    """All that is wrong with the class ``Mine`` of a module with `body`."""
    write(folder, body)
    return "\n".join(check_adapter("mine.py:Mine", folder))


def test_a_module_is_found_in_the_base_folder(tmp_path: Path) -> None:
    write(tmp_path, "")
    assert load_adapter("mine:Adapter", tmp_path).__module__ == "mine"
    assert check_adapter("mine:Adapter", tmp_path) == ()


def test_a_file_is_loaded_once_and_its_classes_travel(tmp_path: Path) -> None:
    path = write(tmp_path, "")
    first = load_adapter(f"{path}:Adapter")
    assert load_adapter("mine.py:Adapter", tmp_path) is first
    text = pickle.dumps(first)
    # Another process finds the class by reference after it has loaded the same ref.
    code = (
        "import pickle, sys; from pytest_cplife.loading import load_adapter;"
        "cls = load_adapter(sys.argv[1]);"
        "assert pickle.loads(bytes.fromhex(sys.argv[2])) is cls"
    )
    subprocess.run([sys.executable, "-c", code, f"{path}:Adapter", text.hex()], check=True)


def test_a_file_can_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "mine_neighbour.py").write_text("meshes = ('dp=4',)\n")
    write(tmp_path, "import mine_neighbour\nclass Mine(Adapter): meshes = mine_neighbour.meshes\n")
    adapter = sound_adapter(load_adapter("mine.py:Mine", tmp_path))
    assert adapter is not None and adapter.meshes == ("dp=4",)


def test_a_nested_attribute_is_found(tmp_path: Path) -> None:
    write(tmp_path, "class Outer:\n    class Inner(Adapter): ...\n")
    assert load_adapter("mine.py:Outer.Inner", tmp_path).__qualname__ == "Outer.Inner"


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("mine", ["'mine' has no colon", "MOD:ATTR", "path/to/file.py:ATTR"]),
        ("mine:", ["cannot be read", "MOD:ATTR"]),
        (":Adapter", ["cannot be read"]),
        ("my-ne:Adapter", ["'my-ne' is not the name of a module"]),
        ("nosuch:Thing", ["no module 'nosuch'", "searched were"]),
        ("mien:Adapter", ["no module 'mien'", "did you mean mine?"]),
        ("mine.sub:Adapter", ["no module 'mine.sub'", "did you mean mine?"]),
        ("mine:Nope", ["mine has no 'Nope'", "holds the adapter Adapter"]),
        ("os:path", ["os:path is a module, not a class"]),
        ("json:JSONDecoder", ["JSONDecoder", "does not derive from", "(LifecycleAdapter):"]),
        ("json:decode", ["json has no 'decode'", "did you mean"]),
        ("mine:instance", ["object of type Adapter", "name its class instead: mine:Adapter"]),
        ("nofile.py:Adapter", ["there is no file", "nofile.py", "holds mine.py"]),
    ],
)
def test_what_is_wrong_with_a_reference(tmp_path: Path, ref: str, parts: list[str]) -> None:
    write(tmp_path, "instance = Adapter()\n")
    with pytest.raises(AdapterProblem) as caught:
        load_adapter(ref, tmp_path)
    text = str(caught.value)
    for part in parts:
        assert part in text
    assert check_adapter(ref, tmp_path) == caught.value.problems


@pytest.mark.parametrize("ref", ["mine_broken:Adapter", "mine_broken.py:Adapter"])
@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero (at "),
        ("import nosuch_thing", "ModuleNotFoundError: No module named 'nosuch_thing' (at "),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def :", "SyntaxError: invalid syntax"),
        ("from . import x", "ImportError: attempted relative import"),
    ],
)
def test_the_error_of_an_import_is_told(tmp_path: Path, ref: str, body: str, part: str) -> None:
    (tmp_path / "mine_broken.py").write_text(f"{body}\n")
    (text,) = check_adapter(ref, tmp_path)
    assert part in text
    assert "mine_broken.py:1" in text or "SystemExit" in text


def test_a_problem_keeps_its_list_between_processes() -> None:
    problem = pickle.loads(pickle.dumps(AdapterProblem(["one", "two"])))
    assert problem.problems == ("one", "two")


def test_missing_methods_are_all_named_with_near_misses(tmp_path: Path) -> None:
    text = problems(
        tmp_path, "class Mine(LifecycleAdapter):\n    def build_serial_modell(self): ...\n"
    )
    assert "lacks the method `build_serial_model(self)" in text
    assert "'build_serial_modell' is no method of the protocol" in text
    assert "lacks the method `start(self, ctx: 'RankContext')" in text


def test_a_constructor_that_needs_arguments(tmp_path: Path) -> None:
    text = problems(tmp_path, "class Mine(Adapter):\n    def __init__(self, size): ...\n")
    assert "Mine() needs arguments" in text
    assert "'size'" in text


def test_a_constructor_that_raises(tmp_path: Path) -> None:
    text = problems(
        tmp_path, "class Mine(Adapter):\n    def __init__(self):\n        open('/nosuch')\n"
    )
    assert "Mine() raises FileNotFoundError" in text
    assert "mine.py:9: open('/nosuch')" in text


def test_a_run_that_start_declares_is_looked_at(tmp_path: Path) -> None:
    body = (
        "class Run(TrainingRun):\n    def train(self, num_steps): ...\n"
        "class Mine(Adapter):\n    def start(self, ctx) -> Run: ...\n"
    )
    text = problems(tmp_path, body)
    assert "Run lacks the method `load(self, path" in text
    assert "Run lacks the method `save(self, path" in text


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("meshes = 'dp=1'", "Mine.meshes is 'dp=1'; accepted is a sequence of meshes"),
        ("meshes = ()", "Mine.meshes is (); accepted is a sequence of meshes"),
        ("meshes = ('dp=x',)", "Mine.meshes is ('dp=x',)"),
        ("placeholders = 'head'", "accepted is a collection of names; write ('head',)"),
        ("plain_parameters = 'head'", "accepted is a collection of names; write ('head',)"),
        ("rng_policy = 'keep'", "accepted is 'restore' or 'offset' or 'none'"),
        ("save_points = 'epoch'", "accepted is 'any' or 'epoch_end'"),
        ("save_points = 'epoch_end'", "steps_per_epoch is None"),
        ("steps_per_epoch = 0", "accepted is None or a whole number from 1"),
        ("launchers = ('mpi',)", "accepted is a collection with some of 'processes'"),
        ("launchers = 'threads'", "accepted is a collection with some of 'processes'"),
        ("payload_objects = 'mine.State'", "True, False or a collection of qualified names"),
        ("payload_objects = ('State',)", "such as ('mytrainer.state.Callbacks',)"),
        ("ema_spec = 0.9", "accepted is None or an EmaSpec"),
        ("ema_spec = EmaSpec(decay=2)", "a number from 0 to 1"),
        ("ema_spec = EmaSpec(decay=0.9, init='zeros')", "init is 'weights' or 'first_update'"),
        ("ema_spec = EmaSpec(decay=0.9, every=0)", "every is at least 1"),
        ("live_load = 'no'", "Mine.live_load is 'no'; accepted is True or False"),
        ("framework = None", "Mine.framework is None; accepted is a string"),
        ("meshes = property(lambda self: 1 / 0)", "Mine.meshes raises ZeroDivisionError"),
        ("def start(self): ...", "`start` that cannot be called as `start(ctx)`"),
        ("def wrap(self, module): ...", "cannot be called as `wrap(module, ctx)`"),
        ("to_plain = 3", "has 'to_plain' as 3, where a method belongs"),
    ],
)
def test_what_is_wrong_with_an_attribute(tmp_path: Path, body: str, part: str) -> None:
    assert part in problems(tmp_path, f"class Mine(Adapter):\n    {body}\n")


@pytest.mark.parametrize(
    "body",
    [
        "meshes = ['fsdp=2,tp=2', 'dp2-cp2']",
        "meshes = property(lambda self: ('dp=1',))",
        "placeholders = {'head'}",
        "ema_spec = EmaSpec(decay=lambda n: 0.9)",
        "save_points, steps_per_epoch = 'epoch_end', 4",
        "payload_objects = True",
        "payload_objects = {'mine.state.State'}",
        "to_plain = staticmethod(lambda tree: tree)",
        "def wrap(self, module, ctx, extra=None): ...",
        "def wrap(self, *args): ...",
    ],
)
def test_what_is_sound(tmp_path: Path, body: str) -> None:
    assert problems(tmp_path, f"class Mine(Adapter):\n    {body}\n") == ""


def test_everything_is_said_at_once(tmp_path: Path) -> None:
    write(tmp_path, "class Mine(LifecycleAdapter):\n    meshes = ''\n    rng_policy = 1\n")
    assert len(check_adapter("mine.py:Mine", tmp_path)) == 4
    assert sound_adapter(load_adapter("mine.py:Mine", tmp_path)) is None
