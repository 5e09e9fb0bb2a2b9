"""Files of three earlier formats still load, on any topology, with every value they hold.

format-0: a serial trainer's weights, its optimizer with integer keys, and the step; it had no
    average, no schedule and no random streams. Saved after 5 steps.
format-1: serial as well; integer optimizer keys, one scheduler, an average, counters.
format-2: the first format of the mesh (cp=2): FQN keys, but DTensors as rank 0 had them.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from pytest_cplife.reference_impl.agreement import CheckpointError
from pytest_cplife.reference_impl.formats import FORMAT_VERSION
from pytest_cplife.reference_impl.plain import to_plain
from pytest_cplife.reference_impl.resume import plain_payload
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from .make_golden import FOLDER, STEPS, digests
from .ranks import differences, full_state, local_state, run_ranks, run_serial, topology, trainer

FORMATS = ("format-0", "format-1", "format-2")
KNOWN = json.loads((FOLDER / "digests.json").read_text())


def load_all(spec: str, out: Path) -> None:
    for name in FORMATS:
        run = trainer(spec)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run.load(FOLDER / f"{name}.pt")
        wanted = dict(KNOWN[name])
        if name == "format-0":  # an average is begun from the weights, and that is said
            assert any("begun from the loaded weights" in str(w.message) for w in caught)
            wanted = {k: v for k, v in wanted.items() if not k.startswith("ema.")}
            shadow = to_plain(run.ema.shadow)
            weights = to_plain(dict(run.model.named_parameters()))
            assert all(torch.equal(shadow[key], weights[key]) for key in shadow)
        found = digests(run)
        assert {key: found[key] for key in wanted} == wanted, name
        assert (run.global_step, run.epoch, run.position) == (STEPS, 1, 1)
        assert run.scheduler.last_epoch == STEPS
        twin = trainer(spec)
        for parameter in run.model.parameters():
            assert isinstance(parameter, DTensor) == bool(spec)
        run.train(1)
        rate = run.optimizer.param_groups[0]["lr"]
        twin.train(STEPS + 1)
        assert rate == pytest.approx(twin.optimizer.param_groups[0]["lr"], rel=1e-12)
        run.save(out / f"{name}.pt")
        saved = torch.load(out / f"{name}.pt", weights_only=True)
        assert saved["format_version"] == FORMAT_VERSION


@pytest.mark.parametrize("spec", ["", "cp=2", "fsdp=2"])
def test_files_of_earlier_formats_load(tmp_path: Path, spec: str) -> None:
    if spec:
        run_ranks(2, load_all, spec, tmp_path)
    else:
        run_serial(load_all, spec, tmp_path)


def refused(folder: Path) -> None:
    run = trainer("")
    run.train(1)
    before = local_state(run)
    old = torch.load(FOLDER / "format-1.pt", weights_only=True)

    def attempt(payload: object, message: str) -> None:
        torch.save(payload, folder / "changed.pt")
        with pytest.raises(CheckpointError, match=message):
            run.load(folder / "changed.pt")
        assert differences(local_state(run), before) == []

    state = old["optimizer"]["state"]
    swapped = {**state, 0: state[1], 1: state[0]}
    attempt(
        {**old, "optimizer": {**old["optimizer"], "state": swapped}},
        r"integer key 0.*another order",
    )
    groups = [dict(group) for group in old["optimizer"]["param_groups"]]
    groups[0]["params"] = groups[0]["params"][:-1]
    attempt(
        {**old, "optimizer": {"state": state, "param_groups": groups}}, "integer keys with groups"
    )
    attempt({**old, "format_version": FORMAT_VERSION + 1}, f"format version {FORMAT_VERSION + 1}")
    attempt({"weights": {}}, "not a checkpoint of this trainer")
    attempt([1, 2], "holds a list")
    assert full_state(run).keys() == before.keys()


def test_integer_keys_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run_serial(refused, tmp_path)


def shard_in_file(path: Path) -> None:
    run = trainer("fsdp=2")
    payload = {**plain_payload(run), "format_version": 2}
    payload["model"] = dict(payload["model"])
    mesh = topology("fsdp=2").mesh
    assert mesh is not None
    payload["model"]["scale"] = distribute_tensor(torch.ones(2), mesh, [Shard(0)])
    if dist.get_rank() == 0:
        torch.save(payload, path)
    dist.barrier()
    with pytest.raises(CheckpointError, match="only one rank's part"):
        run.load(path)


def test_one_ranks_shard_is_not_taken_for_another_ranks(tmp_path: Path) -> None:
    run_ranks(2, shard_in_file, tmp_path / "shards.pt")


def test_golden_files_are_small() -> None:
    sizes = [path.stat().st_size for path in FOLDER.glob("*.pt")]
    assert len(sizes) == len(FORMATS)
    assert max(sizes) < 150_000
