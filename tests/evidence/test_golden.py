"""Archives on disk: whole or not there, never replaced, and refused by name where they are not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.evidence.golden import (
    CHECKPOINT,
    MANIFEST,
    VERSION,
    BadArchive,
    adapter_name,
    archives_in,
    content_of,
    keep_archive,
)
from tests.evidence.archiving import manifest


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "saved"
    path.write_bytes(b"all of it")
    return path


def test_what_is_kept_is_read_again(tmp_path: Path, checkpoint: Path) -> None:
    folder = tmp_path / "not" / "yet"
    kept = keep_archive(folder, checkpoint, manifest())
    assert kept == folder / "Adapter-20260102030405"
    assert (kept / CHECKPOINT).read_bytes() == b"all of it"
    assert archives_in(folder) == (manifest(name=kept.name),)
    assert [path.name for path in folder.iterdir()] == [kept.name]


def test_a_checkpoint_may_be_a_folder(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    (saved / "ranks").mkdir(parents=True)
    (saved / "ranks" / "0").write_bytes(b"part")
    kept = keep_archive(tmp_path / "golden", saved, manifest())
    assert content_of(kept / CHECKPOINT) == content_of(saved)
    (kept / CHECKPOINT / "ranks" / "0").rename(kept / CHECKPOINT / "ranks" / "1")
    assert content_of(kept / CHECKPOINT) != content_of(saved)


def test_nothing_is_replaced(tmp_path: Path, checkpoint: Path) -> None:
    first = keep_archive(tmp_path / "golden", checkpoint, manifest(mesh="cp=2"))
    checkpoint.write_bytes(b"another")
    second, third = (keep_archive(tmp_path / "golden", checkpoint, manifest()) for _ in range(2))
    assert len({first, second, third}) == 3
    assert (first / CHECKPOINT).read_bytes() == b"all of it"
    assert archives_in(tmp_path / "golden")[0].mesh == "cp=2"


def test_an_archive_that_cannot_be_finished_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "golden"
    with pytest.raises(FileNotFoundError):
        keep_archive(folder, tmp_path / "nothing", manifest())
    assert list(folder.iterdir()) == []


def test_the_oldest_comes_first(tmp_path: Path, checkpoint: Path) -> None:
    folder = tmp_path / "golden"
    for year in (2027, 2025, 2026):
        keep_archive(folder, checkpoint, manifest(recorded=f"{year}-01-01T00:00:00+00:00"))
    assert [one.recorded[:4] for one in archives_in(folder)] == ["2025", "2026", "2027"]


def test_what_lies_beside_the_archives_is_left_alone(tmp_path: Path, checkpoint: Path) -> None:
    folder = tmp_path / "golden"
    keep_archive(folder, checkpoint, manifest())
    (folder / "README").write_text("what this is")
    (folder / ".unfinished").mkdir()
    assert len(archives_in(folder)) == 1


def rewritten(**changes: Any) -> Callable[[Path], None]:
    def change(archive: Path) -> None:
        data = json.loads((archive / MANIFEST).read_text()) | changes
        wanted = {key: value for key, value in data.items() if value is not None}
        (archive / MANIFEST).write_text(json.dumps(wanted))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (rewritten(version=VERSION + 1), f"has version {VERSION + 1}, written by a newer"),
        (rewritten(version="x"), "has version x"),
        (rewritten(version=None), "cannot be read"),
        (rewritten(digests=None, mesh=None), r"cannot be read \(it lacks digests, mesh\)"),
        (lambda archive: (archive / MANIFEST).write_text("[1"), "cannot be read"),
        (lambda archive: (archive / MANIFEST).write_text("[1]"), "cannot be read"),
        (lambda archive: (archive / MANIFEST).unlink(), f"has no {MANIFEST}"),
        (lambda archive: (archive / CHECKPOINT).unlink(), f"has no {CHECKPOINT}"),
    ],
)
def test_what_is_no_archive_is_refused(
    tmp_path: Path, checkpoint: Path, damage: Callable[[Path], None], message: str
) -> None:
    archive = keep_archive(tmp_path / "golden", checkpoint, manifest())
    damage(archive)
    with pytest.raises(BadArchive, match=message) as caught:
        archives_in(tmp_path / "golden")
    assert str(caught.value).startswith(archive.name)


def test_two_that_say_the_same() -> None:
    one = manifest(content="00")
    assert one.says_the_same(manifest(name="a", recorded="later", content="11"))
    assert not one.says_the_same(manifest(counters={"global_step": 4, "epoch": 0}))


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("mymod.sub:Adapter", "mymod.sub:Adapter"),
        ("/anywhere/at/all/file.py:Adapter", "file.py:Adapter"),
        ("file.py:Outer.Adapter", "file.py:Outer.Adapter"),
    ],
)
def test_an_adapters_name_holds_no_folder(ref: str, name: str) -> None:
    assert adapter_name(ref) == name
