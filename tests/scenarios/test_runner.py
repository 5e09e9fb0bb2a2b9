"""Making runs: each once, in its lane, after those it needs, on a launcher that only pretends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.adapter import LifecycleAdapter
from pytest_cplife.evidence.journal import Recorder
from pytest_cplife.evidence.store import TensorStore
from pytest_cplife.launchers.base import Launcher, RankFailure, World, WorldFailure
from pytest_cplife.mesh import MeshSpec
from pytest_cplife.scenarios.order import Order
from pytest_cplife.scenarios.runner import Runner
from pytest_cplife.scenarios.table import RUNS
from pytest_cplife.settings import Settings

TWO, FOUR = MeshSpec.parse("dp=2"), MeshSpec.parse("dp=2,tp=2")
PHASES = ("start", "train", "save", "train on", "save again", "close")


@dataclass
class Call:
    """One call on a world, as the launcher saw it."""

    script: str
    size: int
    lane: str
    order: Order


@dataclass
class FakeWorld(World):
    size: int
    lane: str
    launcher: FakeLauncher

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float | None = None) -> list[Any]:
        (order,) = args
        self.launcher.calls.append(Call(fn.__name__, self.size, self.lane, order))
        assert (order.folder / "workdir").is_dir()
        failed = self.launcher.fails.get(fn.__name__)
        for rank in range(self.size):
            recorder = Recorder(rank, order.journal(rank), TensorStore(order.store))
            for phase in PHASES:
                if phase == failed:
                    recorder._write("begin", phase, None)
                    break
                with recorder.phase(phase):
                    pass
        if fn.__name__ not in self.launcher.silent:
            order.output.write_bytes(b"checkpoint")
        if failed is not None:
            first = RankFailure(1, "raised", "ValueError", "no")
            other = RankFailure(0, "raised", "RuntimeError", "peer", secondary=True)
            raise WorldFailure((first, other), 1.0)
        return [None] * self.size

    def close(self) -> None: ...


@dataclass
class FakeLauncher(Launcher):
    """`fails` gives, by script, the phase it fails in; `silent` scripts write no file."""

    name: str = "fake"
    fails: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    calls: list[Call] = field(default_factory=list)
    largest: int = 8

    def world(self, size: int, lane: str = "main", **more: Any) -> World:
        if size > self.largest:
            pytest.skip("this machine is too small")
        return FakeWorld(size, lane, self)

    def serial_world(self, lane: str = "main") -> World:
        return FakeWorld(1, lane, self)

    def close(self) -> None: ...

    @property
    def made(self) -> list[str]:
        return [call.script for call in self.calls]


class AnyTime(LifecycleAdapter):
    """Only its attributes are looked at."""

    def build_serial_model(self) -> Any: ...
    def start(self, ctx: Any) -> Any: ...


class EpochEnds(AnyTime):
    save_points = "epoch_end"
    steps_per_epoch = 4


@pytest.fixture
def launcher() -> FakeLauncher:
    return FakeLauncher()


@pytest.fixture
def runner(launcher: FakeLauncher, tmp_path: Path) -> Runner:
    return Runner(Settings("mod:Adapter", tmp_path), AnyTime, launcher)


def test_a_run_is_made_once(runner: Runner, launcher: FakeLauncher) -> None:
    one = runner.run("uninterrupted", TWO)
    assert runner.run("uninterrupted", TWO) is one
    assert launcher.made == ["uninterrupted"]
    assert [len(one.ranks), one.completed("train on"), one.failure] == [2, True, None]


def test_meshes_and_twins_are_runs_of_their_own(runner: Runner, launcher: FakeLauncher) -> None:
    for name, spec in (("uninterrupted", TWO), ("uninterrupted", FOUR), ("twin", TWO)):
        runner.run(name, spec)
    assert launcher.made == ["uninterrupted"] * 3
    assert [call.size for call in launcher.calls] == [2, 4, 2]
    assert len({call.order.folder for call in launcher.calls}) == 3


def test_the_serial_run_is_the_sessions(runner: Runner, launcher: FakeLauncher) -> None:
    assert runner.run("serial", TWO) is runner.run("serial", FOUR)
    (call,) = launcher.calls
    assert (call.size, call.order.spec) == (1, None)


def test_what_comes_first_is_made_first_and_once(runner: Runner, launcher: FakeLauncher) -> None:
    runner.run("resumed", TWO)
    runner.run("files", TWO)
    runner.run("saving", TWO)
    assert launcher.made == ["saving", "resumed", "files"]
    saving, resumed, files = launcher.calls
    assert resumed.order.source == saving.order.output
    assert files.order.source == saving.order.output
    assert files.order.second_source == resumed.order.output
    assert (files.size, files.order.spec) == (1, None)


def test_what_one_lane_saved_is_read_in_another(runner: Runner, launcher: FakeLauncher) -> None:
    """Resuming in the processes that saved would find what is only kept in memory."""
    for name in RUNS:
        if not RUNS[name].partner:
            runner.run(name, TWO)
    lanes = {call.order.output: call.lane for call in launcher.calls}
    read = [call for call in launcher.calls if call.order.source]
    assert len(read) > 4
    for call in read:
        assert call.order.source is not None
        assert call.lane != lanes[call.order.source], call.script


def test_a_partners_checkpoint(runner: Runner, launcher: FakeLauncher) -> None:
    crossed = runner.run("crossed", TWO, FOUR)
    assert [(call.script, call.size) for call in launcher.calls] == [("saving", 4), ("crossed", 2)]
    assert launcher.calls[1].order.source == launcher.calls[0].order.output
    assert runner.run("crossed", TWO, FOUR) is crossed
    other = MeshSpec.parse("tp=2")
    assert runner.run("crossed", TWO, other) is not crossed
    assert len({call.order.folder for call in launcher.calls}) == 4


def test_there_and_back(runner: Runner, launcher: FakeLauncher) -> None:
    """What comes back to a mesh is what the partner has made of this mesh's own checkpoint."""
    runner.run("returned", TWO, FOUR)
    began, moved, back = launcher.calls
    assert [(call.script, call.size) for call in launcher.calls] == [
        ("advancing", 2),
        ("moving", 4),
        ("returning", 2),
    ]
    assert moved.order.source == began.order.output
    assert back.order.source == moved.order.output
    runner.run("moved", FOUR, TWO)
    assert len(launcher.calls) == 3


def test_a_failure_is_evidence(runner: Runner, launcher: FakeLauncher) -> None:
    launcher.fails["saving"] = "save"
    run = runner.run("saving", TWO)
    assert run.failure is not None
    assert (run.failure.phase, run.failure.ranks) == ("save", (1,))
    assert run.failure.headline == "rank 1 raised: ValueError: no"
    assert "RuntimeError: peer" in run.failure.detail
    assert run.completed("train") and not run.completed("save")
    assert runner.run("saving", TWO) is run
    assert launcher.made == ["saving"]


@pytest.mark.parametrize(("phase", "held"), [("save", True), ("start", True), ("train on", False)])
def test_a_run_is_held_back_where_there_is_nothing_to_read(
    runner: Runner, launcher: FakeLauncher, phase: str, held: bool
) -> None:
    """A save that came to its end is good for a resume, whatever happened afterwards."""
    launcher.fails["saving"] = phase
    run = runner.run("resumed", TWO)
    assert (run.held_back == "saving") is held
    assert (run.ranks == ()) is held
    assert ("resumed" in launcher.made) is not held


def test_a_save_without_a_file_holds_back(runner: Runner, launcher: FakeLauncher) -> None:
    launcher.silent.add("saving")
    for name in ("resumed", "files", "still"):
        assert runner.run(name, TWO).held_back == "saving"
    assert runner.run("crossed", FOUR, TWO).held_back == "saving"
    assert "resumed" not in launcher.made


def test_a_chain_is_held_back_at_its_nearest_link(runner: Runner, launcher: FakeLauncher) -> None:
    launcher.fails["relayed"] = "train on"
    assert runner.run("relayed", TWO).held_back == ""
    assert runner.run("relayed again", TWO).held_back == "relayed"
    launcher.silent.add("early")
    assert runner.run("rewound", TWO).held_back == "early"


def test_a_chain_of_three(runner: Runner, launcher: FakeLauncher) -> None:
    launcher.fails["saving"] = "save"
    assert runner.run("relayed again", TWO).held_back == "relayed"
    assert runner.run("relayed", TWO).held_back == "saving"
    assert launcher.made == ["saving"]


def test_files_are_read_also_where_the_second_is_not_there(
    runner: Runner, launcher: FakeLauncher
) -> None:
    launcher.fails["resumed"] = "load"
    launcher.silent.add("resumed")
    assert runner.run("files", TWO).held_back == ""
    second = launcher.calls[-1].order.second_source
    assert second is not None
    assert not second.exists()


def test_a_machine_that_is_too_small_says_so_each_time(
    runner: Runner, launcher: FakeLauncher
) -> None:
    launcher.largest = 2
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception, match="too small"):
            runner.run("uninterrupted", FOUR)


@pytest.mark.parametrize(
    ("asked", "made"), [((3, 2), (4, 4)), ((4, 4), (4, 4)), ((5, 1), (8, 4)), ((1, 5), (4, 8))]
)
def test_both_saves_fall_on_the_end_of_an_epoch(
    launcher: FakeLauncher, tmp_path: Path, asked: tuple[int, int], made: tuple[int, int]
) -> None:
    """The resumed run saves a second time, after its last step."""
    settings = Settings("mod:Adapter", tmp_path, steps=asked)
    Runner(settings, EpochEnds, launcher).run("saving", TWO)
    assert launcher.calls[0].order.steps == made


def test_steps_are_as_asked_where_a_save_is_possible_at_any(
    launcher: FakeLauncher, tmp_path: Path
) -> None:
    settings = Settings("mod:Adapter", tmp_path, steps=(5, 3), seed=7)
    Runner(settings, AnyTime, launcher).run("saving", TWO)
    assert launcher.calls[0].order.steps == (5, 3)
    assert launcher.calls[0].order.seed == 7


def test_every_run_is_made_after_one_that_exists() -> None:
    for name, kind in RUNS.items():
        assert kind.name == name
        for before in (kind.after, kind.also_after, kind.presumes):
            assert not before or before in RUNS
        assert kind.lane != "main" or not kind.after or RUNS[kind.after].lane != "main"
        assert not kind.partner or kind.after
