"""The instants of a save: what a kill at each of them would leave, and which are looked at."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_cplife.evidence.folders import FolderState, StateBook, tree_digest
from pytest_cplife.scenarios.crash_faults import listening
from pytest_cplife.scenarios.crash_states import Watch, choose, halfway


def watched(folder: Path, path: Path) -> tuple[StateBook, Watch]:
    book = StateBook(folder / "states")
    return book, Watch(book, path, "generation 2", 0, fresh=False)


def test_each_state_that_a_save_goes_through_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "saved" / "checkpoint"
    path.parent.mkdir()
    path.write_bytes(b"older")
    book, watch = watched(tmp_path, path)
    with listening(watch, own_process=True):
        unfinished = path.with_name(".checkpoint.0123456789ab")
        torch.save(torch.zeros(3), unfinished)
        path.rename(path.with_name("checkpoint.old"))
        unfinished.rename(path)
        path.with_name("checkpoint.old").unlink()
    assert [state.name for state in watch.seen] == [
        "generation 2, rank 0 before finishing .checkpoint.#",
        "generation 2, rank 0 before renaming checkpoint",
        "generation 2, rank 0 before renaming .checkpoint.#",
        "generation 2, rank 0 before removing checkpoint.old",
    ]
    held = [{entry.name for entry in (book.root / s.tree).iterdir()} for s in watch.seen]
    assert held == [
        {"checkpoint", ".checkpoint.0123456789ab"},
        {"checkpoint", ".checkpoint.0123456789ab"},
        {"checkpoint.old", ".checkpoint.0123456789ab"},
        {"checkpoint.old", "checkpoint"},
    ]
    begun, first, second, third = watch.seen
    half = (book.root / begun.tree / unfinished.name).read_bytes()
    assert half != (book.root / first.tree / unfinished.name).read_bytes()
    assert not begun.decisive
    assert (book.root / first.tree / "checkpoint").read_bytes() == b"older"
    assert (first.decisive, second.checkpoint) == (True, "")
    assert third.checkpoint == tree_digest(path)


def test_a_file_that_torch_writes_in_place_is_seen_in_mid_write(tmp_path: Path) -> None:
    path = tmp_path / "saved" / "checkpoint"
    path.parent.mkdir()
    torch.save(torch.zeros(3), path)
    older = tree_digest(path)
    book, watch = watched(tmp_path, path)
    with listening(watch, own_process=True):
        torch.save(torch.ones(30_000), path)
    (state,) = watch.seen
    assert state.name == "generation 2, rank 0 before finishing checkpoint"
    assert state.checkpoint not in (older, tree_digest(path))
    with pytest.raises(RuntimeError):
        torch.load(book.root / state.tree / path.name)
    assert torch.load(path).sum() == 30_000


def test_what_changes_nothing_is_no_instant(tmp_path: Path) -> None:
    path = tmp_path / "saved" / "checkpoint"
    path.parent.mkdir()
    path.write_bytes(b"older")
    _, watch = watched(tmp_path, path)
    with listening(watch, own_process=True):
        path.read_bytes()
        (tmp_path / "elsewhere").write_bytes(b"x")
    assert watch.seen == []


def test_removing_a_tree_goes_through_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "saved" / "checkpoint"
    path.mkdir(parents=True)
    for name in "ab":
        (path / name).touch()
    _, watch = watched(tmp_path, path)
    with listening(watch, own_process=True):
        shutil.rmtree(path)
    assert len({state.tree for state in watch.seen}) == 3


STATE = FolderState("some", "", "", False)


def test_equal_states_are_looked_at_once() -> None:
    a = replace(STATE, name="a", tree="1", moment=2.0)
    b = replace(STATE, name="b", tree="1", moment=1.0)
    assert choose([a, b], 5) == [b]
    assert choose([a, b, replace(a, fresh=True)], 5) == [b, replace(a, fresh=True)]


def test_each_content_of_the_path_comes_first() -> None:
    states = [
        replace(STATE, name=f"{n}", tree=f"{n}", checkpoint="old", moment=float(n))
        for n in range(10)
    ]
    states[4] = replace(states[4], checkpoint="torn")
    states[7] = replace(states[7], decisive=True)
    assert [s.name for s in choose(states, 1)] == ["7"]
    assert [s.name for s in choose(states, 2)] == ["4", "7"]
    assert [s.name for s in choose(states, 5)] == ["0", "4", "5", "7", "9"]
    assert choose(states, 20) == states


def test_nothing_at_a_path_where_a_checkpoint_was_is_a_content_of_its_own() -> None:
    """Between two renames, of a save over an older one; before the first save there was none."""
    never = replace(STATE, name="never", tree="0", fresh=True, decisive=True)
    others = [
        replace(STATE, name=f"{n}", tree=f"{n}", checkpoint="x", moment=float(n), decisive=True)
        for n in range(1, 10)
    ]
    between = replace(others[4], name="between", checkpoint="")
    states = [never, *others[:4], between, *others[5:]]
    assert [s.name for s in choose(states, 3)] == ["never", "1", "between"]


def saved_over(*contents: str, decisive: str = "") -> list[FolderState]:
    """Instants of a save over a checkpoint, by what lies at the path; named by their number."""
    return [
        replace(
            STATE,
            name=f"{number}",
            tree=f"{number}",
            checkpoint=content,
            moment=float(number),
            decisive=f"{number}" in decisive,
        )
        for number, content in enumerate(contents)
    ]


NEWEST = replace(STATE, name="newest", tree="newest", checkpoint="new")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        # A file that is exchanged by one rename, after two others: the middle one of the three.
        (saved_over("old", "old", "old", "old", "new", decisive="123"), ["2", "4"]),
        # A folder that takes two.
        (saved_over("old", "old", "", "new", "new", decisive="1234"), ["1", "2"]),
        # Written in place: another content at every instant.
        (saved_over("old", "a", "b", "c", "d", "e", decisive=""), ["2", "4"]),
        (saved_over(), []),
    ],
)
def test_for_another_mesh_some_of_it_is_there(
    states: list[FolderState], expected: list[str]
) -> None:
    assert [state.name for state in halfway(reversed(states), NEWEST, 2)] == expected
    first = replace(STATE, name="first", tree="first", fresh=True, decisive=True)
    assert [s.name for s in halfway([first, *states, NEWEST], NEWEST, 2)] == (expected or ["first"])
