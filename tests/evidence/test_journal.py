"""The journal survives whatever happens to the rank that writes it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from pathlib import Path

import pytest
import torch

from pytest_cplife.evidence.journal import RankJournal, Recorder, read_journal
from pytest_cplife.evidence.store import TensorStore
from tests.evidence.toys import Chatty, ToyRun


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return Recorder(2, tmp_path / "rank2.journal", TensorStore(tmp_path / "store"))


def test_what_was_written_is_read(recorder: Recorder) -> None:
    run = Chatty()
    with recorder.phase("start"):
        recorder.moment("start", run)
    with recorder.phase("train"):
        recorder.train("first", run, 2)
    recorder.absent("not offered", "predict")
    recorder.fact("device", "cpu")
    journal = read_journal(recorder.path)
    assert list(journal.phases) == ["start", "train"]
    assert all(seconds >= 0 for seconds in journal.phases.values())
    assert journal.open_phase == ""
    assert journal.absent == {"predict": "not offered"}
    assert journal.snapshots["start"].rank == 2
    assert journal.snapshots["start"].counters["global_step"] == 0
    assert len(journal.steps["first"]) == len(journal.losses["first"]) == 2
    assert journal.facts == {
        "sample_ids first": (0, 1, 2, 3),
        "control_scalars first": (("depth", 2.0), ("recycles", 3.0)),
        "streams moved first": (),
        "own draws first": (),
        "device": "cpu",
    }


def test_optional_views_may_be_missing(recorder: Recorder) -> None:
    with recorder.phase("train"):
        recorder.train("first", ToyRun(), 1)
    journal = read_journal(recorder.path)
    assert journal.facts == {"streams moved first": (), "own draws first": ()}
    assert journal.open_phase == ""


def test_an_exception_leaves_its_phase_open(recorder: Recorder) -> None:
    with recorder.phase("start"):
        pass
    with pytest.raises(RuntimeError), recorder.phase("save"):
        recorder.fact("reached", True)
        raise RuntimeError
    journal = read_journal(recorder.path)
    assert (journal.open_phase, list(journal.phases)) == ("save", ["start"])
    assert journal.facts == {"reached": True}


def test_what_is_not_offered_leaves_no_phase_open(recorder: Recorder) -> None:
    with pytest.raises(NotImplementedError), recorder.phase("predict"):
        raise NotImplementedError
    assert read_journal(recorder.path).open_phase == "predict"
    recorder.absent("predict is not offered", "prediction")
    assert read_journal(recorder.path).open_phase == ""


def test_a_rank_that_is_killed_leaves_its_phase_open(recorder: Recorder) -> None:
    def body() -> None:
        with recorder.phase("save"):
            recorder.fact("reached", True)
            os.kill(os.getpid(), signal.SIGKILL)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGKILL
    journal = read_journal(recorder.path)
    assert journal.open_phase == "save"
    assert journal.facts == {"reached": True}


def test_no_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "none") == RankJournal()


def test_an_entry_cut_off_anywhere_ends_the_journal(recorder: Recorder, tmp_path: Path) -> None:
    recorder.fact("one", 1)
    whole = recorder.path.stat().st_size
    recorder.moment("start", ToyRun())
    recorder.fact("numbers", list(range(20)))
    content = recorder.path.read_bytes()
    path = tmp_path / "cut.journal"
    for end in range(whole, len(content), 7):
        path.write_bytes(content[:end])
        journal = read_journal(path)
        assert journal.facts.get("one") == 1
        assert "numbers" not in journal.facts
        assert list(journal.snapshots) in ([], ["start"])


def test_what_cannot_be_pickled_does_not_spoil_the_rest(recorder: Recorder) -> None:
    recorder.fact("before", 1)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        recorder.fact("bad", [b"x" * 1_000_000, lambda: 1])
    recorder.fact("after", 2)
    assert read_journal(recorder.path).facts == {"before": 1, "after": 2}


def test_a_later_entry_wins(recorder: Recorder) -> None:
    recorder.fact("x", 1)
    recorder.fact("x", 2)
    assert read_journal(recorder.path).facts == {"x": 2}


def test_losses_are_kept_as_they_are(recorder: Recorder) -> None:
    """What train() returns wrongly is for a rule to say, so nothing is cast."""

    class Odd(ToyRun):
        def train(self, num_steps: int) -> list[float]:
            return [torch.tensor(1.5)]  # type: ignore[list-item]

    recorder.train("first", Odd(), 1)
    (loss,) = read_journal(recorder.path).losses["first"]
    assert isinstance(loss, torch.Tensor)
