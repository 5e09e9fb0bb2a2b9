"""A stranger's interpreter: its answer, and a machine on which it does not get ready."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pytest_cplife.scenarios import fresh


def test_file_is_read(tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2)}, tmp_path / "file")
    told = fresh.read(tmp_path / "file", ["pytest_cplife"], tmp_path)
    assert told == {"refusal": "", "distributed": [], "process group": False}


def test_interpreter_that_does_not_get_ready_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(fresh.NotStarted, match="has not imported torch within 0 s"):
        fresh.read(tmp_path / "file", [], tmp_path, seconds=0.0)


def test_end_without_an_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise SystemExit('no such thing')")
    monkeypatch.setattr(fresh, "_PROGRAM", program)
    with pytest.raises(RuntimeError, match="ended with 1: no such thing"):
        fresh.read(tmp_path / "file", [], tmp_path)


def test_a_file_that_takes_for_ever_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import time; print('ready', flush=True); time.sleep(600)")
    monkeypatch.setattr(fresh, "_PROGRAM", program)
    with pytest.raises(RuntimeError, match="not read within 5 s"):
        fresh.read(tmp_path / "file", [], tmp_path, seconds=5.0)
