"""Every run that scenarios are made of, as data: script, kind of world, and what comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pytest_cplife.scenarios import (
    background,
    crash,
    crash_failing,
    crash_killed,
    crash_moved,
    crash_newest,
    crash_spoiled,
    crossing,
    evaluation,
    exporting,
    fresh,
    golden,
    late,
    legacy,
    marked,
    midway,
    onward,
    overlapping,
    relays,
    scripts,
    sharded,
    tampering,
    ungathered,
    weighed,
)
from pytest_cplife.scenarios.converting import converted
from pytest_cplife.scenarios.epochs import epochs, epochs_resumed
from pytest_cplife.scenarios.rounding import nudged
from pytest_cplife.scenarios.transfer import transferred


@dataclass(frozen=True, slots=True)
class RunKind:
    """One kind of run.

    Attributes:
        name: how rules and reports call it.
        script: what each rank does.
        world: ranks with a process group on the mesh; one process with a serial run; or one process
            that is told to run distributed and has no group.
        lane: runs of different lanes share no process.
        after: the run whose checkpoint it reads; `source_phase` is the phase that writes it.
        presumes: a run that has to have come as far as that phase, of which nothing is read.
        per_session: made once, not once per mesh; what it reads is of the mesh that first asks.
        patience: how many times the deadline of a call it may take: it saves or loads that often.
        at_least: seconds that it may take in any case, where it waits for what is the suite's own.
    """

    name: str
    script: Callable[..., Any]
    world: Literal["mesh", "serial", "groupless"] = "mesh"
    lane: str = "main"
    after: str = ""
    presumes: str = ""
    source_phase: str = "save"
    also_after: str = ""
    partner: bool = False
    per_session: bool = False
    patience: int = 1
    at_least: float = 0.0


RUNS = {
    kind.name: kind
    for kind in (
        RunKind("serial", scripts.serial, world="serial", per_session=True),
        RunKind("refusal", scripts.refusal, world="groupless", lane="refusal"),
        RunKind("uninterrupted", scripts.uninterrupted),
        RunKind("twin", scripts.uninterrupted),
        RunKind("nudged", nudged),
        # Where a save does not work, what comes of many is no question: they are after one, too.
        RunKind("epochs", epochs, presumes="saving"),
        RunKind("epochs resumed", epochs_resumed, lane="resume", after="epochs"),
        RunKind("converted", converted),
        RunKind("transferred", transferred, lane="resume", after="saving"),
        RunKind("parity", scripts.parity),
        RunKind("saving", scripts.saving),
        RunKind("midway", midway.midway),
        RunKind("early", scripts.early),
        RunKind("resumed", scripts.resumed, lane="resume", after="saving"),
        RunKind("relayed", relays.relayed, lane="resume", after="saving"),
        RunKind("relayed again", relays.relayed_again, after="relayed", source_phase="save again"),
        RunKind(
            "relayed thrice",
            relays.relayed_thrice,
            lane="resume",
            after="relayed again",
            source_phase="save again",
        ),
        RunKind("rewound", relays.rewound, lane="resume", after="early"),
        RunKind("still", relays.still, lane="resume", after="saving"),
        RunKind("evaluated", evaluation.evaluated),
        RunKind("refusing", tampering.refusing, lane="resume", after="saving"),
        RunKind("marked", marked.marked, lane="resume", after="saving"),
        RunKind("weighed", weighed.weighed, presumes="saving"),
        RunKind("late", late.late, presumes="saving"),
        RunKind("legacy", legacy.legacy, lane="resume", after="saving"),
        RunKind("kept", legacy.kept, lane="resume"),
        RunKind("golden", golden.golden, lane="resume"),
        RunKind("sharding", sharded.sharding),
        RunKind(
            "unsharding",
            sharded.unsharding,
            lane="resume",
            after="sharding",
            source_phase="save sharded",
        ),
        RunKind(
            "unsharding again",
            sharded.unsharding_again,
            lane="resume",
            after="unsharding",
            source_phase="save sharded again",
        ),
        RunKind(
            "resharding",
            sharded.resharding,
            lane="resume",
            after="sharding",
            source_phase="save sharded",
            partner=True,
        ),
        RunKind(
            "sharded files",
            sharded.sharded_files,
            world="serial",
            lane="reader",
            after="sharding",
            source_phase="save sharded",
        ),
        RunKind("begun", background.begun),
        RunKind(
            "begun again",
            background.begun_again,
            lane="resume",
            after="begun",
            source_phase="wait",
        ),
        RunKind("begun in vain", background.begun_in_vain),
        RunKind("begun twice", overlapping.begun_twice),
        RunKind(
            "begun twice again",
            overlapping.begun_twice_again,
            lane="resume",
            after="begun twice",
            source_phase="close",
        ),
        RunKind(
            "exporting",
            exporting.exporting,
            world="serial",
            lane="reader",
            after="sharding",
            source_phase="save sharded",
        ),
        RunKind(
            "exported",
            exporting.exported,
            lane="resume",
            after="exporting",
            source_phase="export",
        ),
        RunKind(
            "ungathered",
            ungathered.ungathered,
            world="serial",
            lane="reader",
            after="saving",
        ),
        RunKind(
            "damaged",
            sharded.damaged,
            lane="resume",
            after="sharding",
            source_phase="save sharded",
        ),
        RunKind(
            "fresh",
            fresh.fresh,
            world="serial",
            lane="reader",
            after="saving",
            per_session=True,
            # Its own clocks end before the launcher's does.
            at_least=3 * fresh.SECONDS,
        ),
        RunKind("onward", onward.onward, lane="resume", after="saving"),
        RunKind("spoiled", crash_spoiled.spoiled, lane="resume", after="saving", patience=3),
        RunKind("advancing", crash_newest.advancing, patience=3),
        RunKind(
            "found",
            crash_newest.finding,
            lane="resume",
            after="advancing",
            source_phase="close",
            patience=4,
        ),
        RunKind(
            "moved",
            crash_moved.moving,
            lane="resume",
            after="advancing",
            source_phase="close",
            partner=True,
            patience=4,
        ),
        RunKind(
            "returned", crash_moved.returning, after="moved", source_phase="close", partner=True
        ),
        RunKind("overwriting", crash.overwriting, presumes="saving"),
        RunKind(
            "recovered",
            crash.recovering,
            lane="resume",
            after="overwriting",
            source_phase="close",
            patience=4,
        ),
        # Where a save replaces nothing, and does not refuse it, that is told by itself.
        RunKind(
            "failing",
            crash_failing.failing,
            presumes="overwriting",
            source_phase="replace",
            patience=6,
        ),
        RunKind(
            "retried",
            crash.recovering,
            lane="resume",
            after="failing",
            source_phase="close",
            patience=4,
        ),
        RunKind(
            "killed",
            crash_killed.killed,
            lane="crash",
            presumes="overwriting",
            source_phase="replace",
        ),
        RunKind("restarted", crash_killed.restarting, lane="resume", after="killed"),
        RunKind("overwriting sharded", crash.overwriting_sharded),
        RunKind(
            "recovered sharded",
            crash.recovering_sharded,
            lane="resume",
            after="overwriting sharded",
            source_phase="close",
            patience=4,
        ),
        RunKind(
            "failing sharded",
            crash_failing.failing_sharded,
            presumes="overwriting sharded",
            source_phase="replace",
            patience=6,
        ),
        RunKind(
            "retried sharded",
            crash.recovering_sharded,
            lane="resume",
            after="failing sharded",
            source_phase="close",
            patience=4,
        ),
        RunKind(
            "killed sharded",
            crash_killed.killed_sharded,
            lane="crash",
            presumes="overwriting sharded",
            source_phase="replace",
        ),
        RunKind(
            "restarted sharded",
            crash_killed.restarting_sharded,
            lane="resume",
            after="killed sharded",
        ),
        RunKind(
            "moved over",
            crash_moved.moving_over,
            lane="resume",
            after="overwriting",
            source_phase="close",
            partner=True,
            patience=4,
        ),
        RunKind(
            "returned over",
            crash_moved.returning_over,
            after="moved over",
            source_phase="close",
            partner=True,
        ),
        RunKind(
            "moved over sharded",
            crash_moved.moving_over_sharded,
            lane="resume",
            after="overwriting sharded",
            source_phase="close",
            partner=True,
            patience=4,
        ),
        RunKind(
            "returned over sharded",
            crash_moved.returning_over_sharded,
            after="moved over sharded",
            source_phase="close",
            partner=True,
        ),
        RunKind("crossed", crossing.crossed, lane="resume", after="saving", partner=True),
        RunKind("serial saving", crossing.serial_saving, world="serial", per_session=True),
        RunKind("from serial", crossing.from_serial, lane="resume", after="serial saving"),
        RunKind(
            "through serial",
            crossing.through_serial,
            world="serial",
            lane="resume",
            after="saving",
        ),
        RunKind(
            "crossed back",
            crossing.crossed_back,
            after="through serial",
            source_phase="save again",
            partner=True,
        ),
        RunKind(
            "files",
            scripts.files,
            world="serial",
            lane="reader",
            after="saving",
            also_after="resumed",
        ),
    )
}
"""`twin` is a second uninterrupted run: what differs between the two is the trainer's own noise.
`nudged` is one whose gradients are off by rounding, for trainers whose restarts add up otherwise.
`crossed` reads what `saving` wrote on the partner mesh, and `crossed back` what the serial run
`through serial` made of it. `moved` goes on in the partner's folder, and `returned` reads what the
partner's `moved` has left of this mesh's own; `moved over` and `returned over` do so with what
`overwriting` has saved to one path. `onward` is what the steps after a change of mesh are
held against. `relayed` stops a second time, `relayed again` a third, right after its load, and
`relayed thrice` goes on from there; `rewound` loads the checkpoint from before the first step."""
