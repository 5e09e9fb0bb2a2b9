"""Every run that scenarios are made of, as data: script, kind of world, and what comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pytest_cplife.scenarios import evaluation, golden, legacy, relays, scripts, sharded, tampering


@dataclass(frozen=True, slots=True)
class RunKind:
    """One kind of run.

    Attributes:
        name: how rules and reports call it.
        script: what each rank does.
        world: ranks with a process group on the mesh, or one process without.
        lane: runs of different lanes share no process.
        after: the run whose checkpoint it reads; `source_phase` is the phase that writes it.
        per_session: made once, not once per mesh.
    """

    name: str
    script: Callable[..., Any]
    world: Literal["mesh", "serial"] = "mesh"
    lane: str = "main"
    after: str = ""
    source_phase: str = "save"
    also_after: str = ""
    partner: bool = False
    per_session: bool = False


RUNS = {
    kind.name: kind
    for kind in (
        RunKind("serial", scripts.serial, world="serial", per_session=True),
        RunKind("refusal", scripts.refusal, world="serial", lane="refusal"),
        RunKind("uninterrupted", scripts.uninterrupted),
        RunKind("twin", scripts.uninterrupted),
        RunKind("parity", scripts.parity),
        RunKind("saving", scripts.saving),
        RunKind("early", scripts.early),
        RunKind("resumed", scripts.resumed, lane="resume", after="saving"),
        RunKind("relayed", relays.relayed, lane="resume", after="saving"),
        RunKind("relayed again", relays.relayed_again, after="relayed", source_phase="save again"),
        RunKind("rewound", relays.rewound, lane="resume", after="early"),
        RunKind("still", relays.still, lane="resume", after="saving"),
        RunKind("evaluated", evaluation.evaluated),
        RunKind("refusing", tampering.refusing, lane="resume", after="saving"),
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
            "resharding",
            sharded.resharding,
            lane="resume",
            after="sharding",
            source_phase="save sharded",
            partner=True,
        ),
        RunKind(
            "damaged",
            sharded.damaged,
            lane="resume",
            after="sharding",
            source_phase="save sharded",
        ),
        RunKind("crossed", scripts.crossed, lane="resume", after="saving", partner=True),
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
`crossed` reads what `saving` wrote on the partner mesh. `relayed` stops a second time and `relayed
again` goes on from there; `rewound` loads the checkpoint from before the first step."""
