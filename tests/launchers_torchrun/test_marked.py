"""Users' own tests on the ranks that torchrun started: the same outcomes as on forked ones."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.launchers_torchrun.starting import ROOT, run, torchrun
from tests.plugin.test_fixtures import Ran

SAMPLES = ROOT / "tests" / "plugin" / "marked_samples.py"
OUTCOMES = {
    "TestMethods::test_each_rank_has_its_instance": "PASSED",
    "test_fails": "FAILED",
    "test_after_a_failure": "PASSED",
    "test_some_skip_and_others_wait": "FAILED",
    "test_some_xfail": "FAILED",
    "test_times_out": "FAILED",
    "test_all_xfail": "XFAIL",
    "test_expected_error": "XFAIL",
    "test_patches": "PASSED",
    "test_sees_no_patch": "PASSED",
    "test_not_picklable": "FAILED",
    "test_world": "PASSED",
    "test_world_fails": "FAILED",
}


def test_every_outcome_is_that_of_forked_ranks(tmp_path: Path) -> None:
    shutil.copy(SAMPLES, tmp_path / "test_marked.py")
    chosen = [f"test_marked.py::{name}" for name in (*OUTCOMES, "test_all_skip", "test_body")]
    command = torchrun("--nproc-per-node=2", pytest=["-rA", "--strict-markers", *chosen])
    said = run(command, folder=tmp_path)
    assert said.status == 1, said.text
    assert said.text.count("test session starts") == 1
    ran = Ran(said.text)
    assert ran.outcomes == OUTCOMES, said.text
    # Skips are listed by place: in the test for the one, outside of it for those too large.
    assert re.search(r"^SKIPPED \[1\] \S+:\d+: could not import 'no_", said.text, re.M)
    assert re.search(r"^SKIPPED \[2\] \S+: needs 4 ranks, torchrun has started 2", said.text, re.M)
    told = ran.section("test_fails")
    assert told.startswith("rank 1 of 2 on mesh cp=2\n")
    for rank in (0, 1):
        assert f"Captured stdout rank {rank} " in told and f"printed by {rank}\n" in told
    told = ran.section("test_some_skip_and_others_wait")
    assert "rank 1 skipped: odd, but rank 0 did not" in told
