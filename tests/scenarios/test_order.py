"""What a rank is told."""

from __future__ import annotations

import pickle
from pathlib import Path

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.scenarios.order import Order


def order(folder: Path) -> Order:
    return Order("mod:Adapter", MeshSpec.parse("dp=2"), folder / "run", folder / "s", (3, 2), 20)


def test_folders(tmp_path: Path) -> None:
    one = order(tmp_path)
    one.prepare()
    assert (one.folder / "workdir").is_dir()
    assert one.output.parent.is_dir()
    assert not one.output.exists()
    assert one.journal(0) != one.journal(1)
    assert one.journal(1).parent == one.folder


def test_an_order_travels_and_turns_serial(tmp_path: Path) -> None:
    one = order(tmp_path)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.serially().spec is None
    assert one.serially().folder == one.folder
