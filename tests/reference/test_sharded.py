"""Distributed checkpoints: any topology, whole or not there, and nothing executed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pytest_cplife.reference_impl import atomic
from pytest_cplife.reference_impl.agreement import CheckpointError
from pytest_cplife.reference_impl.resume import sharded_state
from pytest_cplife.reference_impl.sharded import DCP, AsyncSaver, PerRank
from torch import Tensor

from .ranks import (
    differences,
    full_state,
    local_state,
    run_ranks,
    run_serial,
    seed_everything,
    trainer,
    world_size,
)


def save(spec: str, path: Path) -> dict[str, Tensor]:
    run = trainer(spec)
    run.train(3)
    run.extra["best"] = {"loss": 0.5, "at": (1, 2)}
    run.save_sharded(path)
    return full_state(run)


def load(spec: str, path: Path) -> dict[str, Tensor]:
    run = trainer(spec)
    run.load_sharded(path)
    assert (run.global_step, run.epoch, run.position) == (3, 0, 3)
    assert run.extra == {"best": {"loss": 0.5, "at": (1, 2)}}
    state = full_state(run)
    run.train(1)
    return state


def ranks(spec: str, body: Callable[..., Any], *args: Any) -> list[Any]:
    if not spec:
        return [run_serial(body, spec, *args)]
    return run_ranks(world_size(spec), body, spec, *args)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    path = tmp_path_factory.mktemp("sharded") / "step-3"
    return path, ranks("fsdp=2,tp=2", save, path)[0]


@pytest.mark.parametrize("spec", ["", "cp=2", "fsdp=2,tp=2", "fsdp=3"])
def test_any_topology_reads_what_shards_wrote(
    saved: tuple[Path, dict[str, Tensor]], spec: str
) -> None:
    for state in ranks(spec, load, saved[0]):
        assert differences(state, saved[1]) == []


def test_shards_read_what_a_serial_run_wrote(tmp_path: Path) -> None:
    wanted = ranks("", save, tmp_path / "serial")[0]
    for state in ranks("fsdp=4", load, tmp_path / "serial"):
        assert differences(state, wanted) == []


def restore_policy(path: Path) -> None:
    run = trainer("fsdp=2", rng_policy="restore")
    run.train(2)
    run.save_sharded(path)
    losses, state = run.train(3), local_state(run)
    again = trainer("fsdp=2", rng_policy="restore")
    seed_everything(7)
    again.load_sharded(path)
    assert again.train(3) == losses
    assert differences(local_state(again), state) == []
    draws: list[Any] = [None, None]
    dist.all_gather_object(draws, torch.rand(4).tolist())
    assert draws[0] != draws[1]


def test_every_rank_gets_its_own_streams_back(tmp_path: Path) -> None:
    run_ranks(2, restore_policy, tmp_path / "restored")


def own_values(path: Path) -> None:
    rank = dist.get_rank()
    DCP.save({"mine": PerRank({"position": 10 + rank}), "ours": {"empty": {}, "n": 3}}, path)
    state: dict[str, Any] = {"mine": PerRank(), "ours": {}}
    DCP.load(state, path)
    assert state["mine"].value == {"position": 10 + rank}
    assert state["ours"] == {"empty": {}, "n": 3}


def other_world(path: Path) -> Any:
    state: dict[str, Any] = {"mine": PerRank("unset"), "ours": {}}
    DCP.load(state, path)
    return state["mine"].value


def test_values_of_ranks_are_not_mixed(tmp_path: Path) -> None:
    run_ranks(2, own_values, tmp_path / "own")
    assert run_ranks(3, other_world, tmp_path / "own") == [None] * 3


def overwrite_fails(path: Path) -> None:
    run = trainer("fsdp=2")
    run.train(1)
    run.save_sharded(path)
    first = full_state(run)
    run.train(1)
    if dist.get_rank() == 1:
        run.extra["bad"] = lambda: None  # not the same tree on all ranks, and not picklable
    original = torch.save

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full") if dist.get_rank() == 1 else AssertionError

    if dist.get_rank() == 1:
        torch.save = fail
    with pytest.raises(CheckpointError, match="disk full"):
        run.save_sharded(path)
    torch.save = original
    fresh = trainer("fsdp=2")
    fresh.load_sharded(path)
    assert differences(full_state(fresh), first) == []
    dist.barrier()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_failed_overwrite_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    run_ranks(2, overwrite_fails, tmp_path / "only")


def asynchronous(path: Path) -> None:
    run = trainer("fsdp=2")
    run.train(2)
    saver = AsyncSaver()
    wanted = full_state(run)
    saver.save(sharded_state(run), path)
    run.train(2)
    saver.wait()
    fresh = trainer("fsdp=2")
    fresh.load_sharded(path)
    assert differences(full_state(fresh), wanted) == []
    saver.save(
        {
            "n": 1,
            "t": torch.ones(1),
            "t.x": {},
            "d": {"a.b": torch.ones(1), "a": {"b": torch.ones(1)}},
        },
        path,
    )
    with pytest.raises(CheckpointError, match=r"'d.a.b'"):
        saver.wait()
    saver.close()


def test_a_save_in_the_background_is_of_the_moment_it_was_asked_for(tmp_path: Path) -> None:
    run_ranks(2, asynchronous, tmp_path / "async")


# -- damage ----------------------------------------------------------------------------


def flip(path: Path) -> None:
    name = sorted(path.glob("__1_*"))[0]
    content = bytearray(name.read_bytes())
    content[len(content) // 2] ^= 4
    name.write_bytes(content)


def cut(path: Path) -> None:
    name = sorted(path.glob("__1_*"))[0]
    name.write_bytes(name.read_bytes()[:-100])


def missing(path: Path) -> None:
    (path / "rank-00001.pt").unlink()


def foreign(path: Path) -> None:
    shutil.copy(path / "rank-00001.pt", path / "rank-00009.pt")


def newer(path: Path) -> None:
    manifest = json.loads((path / atomic.MANIFEST).read_text())
    manifest["format_version"] = 99
    (path / atomic.MANIFEST).write_text(json.dumps(manifest))


def unfinished(path: Path) -> None:
    (path / atomic.MANIFEST).unlink()


class Bomb:
    def __reduce__(self) -> Any:
        return os.system, ("touch exploded",)


def reseal(path: Path, name: str) -> None:
    manifest = json.loads((path / atomic.MANIFEST).read_text())
    record = atomic.file_record(path / name)
    manifest["files"][name] = {"size": record.size, "crc32": record.crc32}
    (path / atomic.MANIFEST).write_text(json.dumps(manifest))


def code(path: Path) -> None:
    (path / ".metadata").write_bytes(pickle.dumps(Bomb()))
    reseal(path, ".metadata")


def code_in_state(path: Path) -> None:
    torch.save({"run": Bomb()}, path / "state.pt")
    reseal(path, "state.pt")


def change_metadata(path: Path, change: Callable[[Any], None]) -> None:
    metadata = pickle.loads((path / ".metadata").read_bytes())
    change(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    reseal(path, ".metadata")


def hole(path: Path) -> None:
    change_metadata(path, lambda m: m.state_dict_metadata["model.embedding.weight"].chunks.pop())


def twice(path: Path) -> None:
    def change(metadata: Any) -> None:
        chunks = metadata.state_dict_metadata["model.embedding.weight"].chunks
        chunks.append(chunks[0])

    change_metadata(path, change)


def escape(path: Path) -> None:
    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = "../elsewhere"

    change_metadata(path, change)


def refuse(spec: str, paths: list[Path]) -> list[str]:
    run = trainer(spec)
    run.train(1)
    before = local_state(run)
    progress = (run.global_step, run.optimizer.param_groups[0]["lr"], torch.get_rng_state().sum())
    messages = []
    for path in paths:
        with pytest.raises(CheckpointError) as caught:
            run.load_sharded(path)
        messages.append(str(caught.value))
        assert differences(local_state(run), before) == [], path.name
        now = (run.global_step, run.optimizer.param_groups[0]["lr"], torch.get_rng_state().sum())
        assert now == progress, path.name
    run.train(1)
    return messages


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (flip, "__1_0.distcp is damaged"),
    (cut, "__1_0.distcp has"),
    (missing, "rank-00001.pt is missing"),
    (foreign, "rank-00009.pt does not belong"),
    (newer, "format version 99"),
    (unfinished, "never finished"),
    (code, "no checkpoint needs"),
    (code_in_state, "eights"),
    (hole, "'model.embedding.weight' is not covered"),
    (twice, "'model.embedding.weight' is written twice"),
    (escape, "outside the directory"),
]


@pytest.fixture(scope="module")
def refusals(
    saved: tuple[Path, dict[str, Tensor]], tmp_path_factory: pytest.TempPathFactory
) -> list[list[str]]:
    folder = tmp_path_factory.mktemp("damaged")
    for damage, _ in DAMAGE:
        shutil.copytree(saved[0], folder / damage.__name__)
        damage(folder / damage.__name__)
    return run_ranks(2, refuse, "fsdp=2", [folder / damage.__name__ for damage, _ in DAMAGE])


@pytest.mark.parametrize("index", range(len(DAMAGE)), ids=[d.__name__ for d, _ in DAMAGE])
def test_damage_is_named_on_all_ranks_and_changes_nothing(
    refusals: list[list[str]], index: int
) -> None:
    damage, message = DAMAGE[index]
    for messages in refusals:
        assert message in messages[index]
        assert f"/{damage.__name__}" in messages[index]
    assert not Path("exploded").exists()
