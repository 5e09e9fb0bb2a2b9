"""What of a rank's output a report keeps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_cplife.launchers.pool import log_tail

CAUSE = "terminate called: what(): too many bytes\nFatal Python error: Aborted\n\n"
STACKS = "".join(f'  File "module.py", line {number} in function\n' for number in range(400))


@pytest.mark.parametrize("before", ["", "an earlier call\n" * 2000])
@pytest.mark.parametrize("stacks", [STACKS, STACKS[:500]])
def test_what_a_rank_died_of_is_kept_however_long_its_stacks_are(
    tmp_path: Path, before: str, stacks: str
) -> None:
    path = tmp_path / "0.log"
    path.write_text(before + CAUSE + stacks)
    text = log_tail(SimpleNamespace(log=lambda rank: path), 0)  # type: ignore[arg-type]
    assert CAUSE.strip() in text
    assert text.endswith(stacks[-200:])
    assert len(text) < 11_000


def test_nothing_was_printed(tmp_path: Path) -> None:
    spec = SimpleNamespace(log=lambda rank: tmp_path / "absent.log")
    assert log_tail(spec, 0) == ""  # type: ignore[arg-type]
