"""Folders by what is in them: digests, copies that were true at one time, and what is left over."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife.evidence import folders
from pytest_cplife.evidence.folders import (
    FolderState,
    StateBook,
    largest_file,
    names_in,
    tree_digest,
    tree_size,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "saved"
    (place / "checkpoint").mkdir(parents=True)
    (place / "checkpoint" / "a.pt").write_bytes(b"aaaa")
    (place / "checkpoint" / "b.pt").write_bytes(b"bb")
    return place


@pytest.fixture
def book(tmp_path: Path) -> StateBook:
    return StateBook(tmp_path / "states")


def test_a_digest_tells_contents_names_and_kinds_apart(folder: Path) -> None:
    seen = {tree_digest(folder)}
    (folder / "checkpoint" / "b.pt").write_bytes(b"bc")
    seen.add(tree_digest(folder))
    (folder / "checkpoint" / "b.pt").rename(folder / "checkpoint" / "c.pt")
    seen.add(tree_digest(folder))
    (folder / "empty").mkdir()
    seen.add(tree_digest(folder))
    (folder / "latest").symlink_to("checkpoint")
    seen.add(tree_digest(folder))
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("empty")
    seen.add(tree_digest(folder))
    assert len(seen) == 6


def test_a_digest_is_one_of_content_and_not_of_place(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert tree_digest(folder) == tree_digest(tmp_path / "elsewhere")
    assert tree_digest(tmp_path / "nowhere") == ""


def test_what_was_kept_can_be_put_back(folder: Path, book: StateBook) -> None:
    (folder / "latest").symlink_to("checkpoint")
    before = tree_digest(folder)
    assert book.keep(folder) == before == book.keep(folder)
    (folder / "checkpoint" / "a.pt").unlink()
    (folder / "other").write_bytes(b"x")
    book.put_back(before, folder)
    assert tree_digest(folder) == before


def test_one_path_is_put_back_and_what_lies_beside_it_stays(folder: Path, book: StateBook) -> None:
    tree, path = book.keep(folder), folder / "checkpoint"
    before = tree_digest(path)
    shutil.rmtree(path)
    path.write_bytes(b"a file now")
    (folder / "left over").write_bytes(b"x")
    book.put_back_one(tree, path)
    assert tree_digest(path) == before
    assert (folder / "left over").exists()


def test_a_folder_that_changes_while_it_is_copied_is_copied_again(
    folder: Path, book: StateBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, times = shutil.copytree, []

    def copy_and_change(source: Path, *more: Any, **options: Any) -> None:
        copy(source, *more, **options)
        if source == folder:  # and not one of the folders in it
            times.append(source)
        if len(times) == 1:
            (folder / "checkpoint" / "b.pt").write_bytes(b"newer")

    monkeypatch.setattr(folders.shutil, "copytree", copy_and_change)
    assert book.keep(folder) == tree_digest(folder)
    assert len(times) == 2
    assert [entry.name for entry in book.root.iterdir()] == [tree_digest(folder)]


def test_a_folder_that_never_holds_still_is_not_kept(
    folder: Path, book: StateBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_and_change(source: Path, target: Path, symlinks: bool) -> None:
        (source / "checkpoint" / "b.pt").write_text(target.name)

    monkeypatch.setattr(folders.shutil, "copytree", copy_and_change)
    assert book.keep(folder) == ""


def test_states_are_written_and_read(book: StateBook) -> None:
    states = [FolderState("one", "abc", "", True, 1.5), FolderState("two", "def", "x", False)]
    book.write(states)
    assert book.read() == states


def test_names_without_what_changes_from_save_to_save(folder: Path) -> None:
    for name in ("step-12.pt", "step-13.pt", "new-0123456789abcdef", "__0_1.distcp"):
        (folder / name).touch()
    assert names_in(folder) == Counter(
        {
            "step-#.pt": 2,
            "new-#": 1,
            "__#_#.distcp": 1,
            "checkpoint": 1,
            "checkpoint/a.pt": 1,
            "checkpoint/b.pt": 1,
        }
    )


def test_sizes(folder: Path) -> None:
    assert largest_file(folder) == 4 == largest_file(folder / "checkpoint" / "a.pt")
    assert tree_size(folder) == 6
    assert largest_file(folder / "nothing") == 0


def test_there_may_be_several_lists(book: StateBook) -> None:
    one, other = (FolderState(name, name, "", fresh=False) for name in ("one", "other"))
    book.write([one, other])
    book.write([other], "some")
    assert (book.read(), book.read("some")) == ([one, other], [other])
