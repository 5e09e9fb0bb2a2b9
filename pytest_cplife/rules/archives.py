"""Comparisons with golden archives, which the rules of COMPAT make."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from pytest_cplife.evidence.golden import Manifest
from pytest_cplife.evidence.run import RunEvidence
from pytest_cplife.evidence.summary import digests
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import replicas_agree
from pytest_cplife.rules.model import Finding, Measurement, Violation

_ABSENT = "not there"
_OTHER_TORCH = 1e-3
"""How far, of its size, a loss may be from one that another version of torch has made."""


def archives(case: Case) -> tuple[Manifest, ...]:
    """The archives that were given, the oldest first."""
    found: tuple[Manifest, ...] = case["golden"].fact("archives")[0]
    return found


def still_loads(case: Case, archive: Manifest) -> Iterator[Finding]:
    """Find what a load of the archive does not give back, bit for bit."""
    run, moment = case["golden"], f"golden {archive.name}: after load"
    if not all(run.fact(f"{archive.name}: intact")):
        text = "the file that was recorded", "another one: it was changed or damaged since"
        yield Violation("checkpoint", *text, moment)
        return
    refused = [(rank, text) for rank, text in enumerate(run.fact(f"{archive.name}: refused"))]
    by = tuple(rank for rank, text in refused if text)
    if by:
        yield Violation("checkpoint", "loads", refused[by[0]][1], moment, ranks=by)
        return
    state = run.at(archive.name)
    wrong = compared = 0
    for what, observed in digests(state, run.assembler).items():
        expected = archive.digests.get(what, {})
        for name in [*expected, *(name for name in observed if name not in expected)]:
            compared += 1
            found = _difference(name, expected.get(name), observed.get(name), moment)
            if found is not None:
                wrong += 1
                yield found
    for name, value in archive.counters.items():
        bad = [(s.rank, s.counters.get(name)) for s in state.ranks if s.counters.get(name) != value]
        if bad:
            ranks = tuple(rank for rank, _ in bad)
            yield Violation(name, str(value), str(bad[0][1]), moment, ranks=ranks)
    for columns in (state.parameters, state.buffers, state.ema, state.optimizer_tensors):
        yield from replicas_agree(columns, moment=moment)
    yield Measurement(f"{moment} ({compared} compared), others", float(wrong), 0.0)


def trains_on(case: Case) -> Iterator[Finding]:
    """Find where the losses after a load of an archive are not those that were recorded.

    Raises:
        NotCovered: no archive has losses of this mesh.
    """
    run, compared = case["golden"], 0
    for archive in archives(case):
        observed = _losses(run, archive)
        same = archive.versions.get("torch") == str(torch.__version__)
        pairs = enumerate(zip(archive.losses, observed, strict=False), start=1)
        for number, (a, b) in pairs:
            compared += 1
            # Another version of torch may take sums in another order.
            other = 0.0 if same else _OTHER_TORCH * abs(a)
            budget = max(other, case.noise.budget("losses", str(number)))
            gap = abs(a - b) if a != b else 0.0
            if not gap <= budget:
                yield Violation(
                    f"loss {number} after the load",
                    repr(a),
                    repr(b),
                    f"golden {archive.name}",
                    step=number,
                    difference=gap,
                    budget=budget,
                )
    if not compared:
        raise NotCovered("no golden archive has losses that were made on this mesh")
    yield Measurement("losses after golden archives, compared", float(compared), 0.0)


def _losses(run: RunEvidence, archive: Manifest) -> list[float]:
    names = (f"{archive.name}: next", f"{archive.name}: rest")
    found = [name for name in names if all(name in journal.losses for journal in run.ranks)]
    return run.losses(*found)[0] if found else []


def _difference(
    name: str, expected: str | None, observed: str | None, moment: str
) -> Violation | None:
    if expected == observed:
        return None
    if expected is None:
        return Violation(name, "absent", "present", moment)
    if observed is None:
        return Violation(name, "present", "missing", moment)
    # A digest is one word; a value that is no tensor has its type before it.
    a, b = (text if " " in text else "a tensor" for text in (expected, observed))
    if a == b:
        return Violation(name, "equal bit for bit", "another tensor", moment)
    return Violation(name, a, b, moment)


def format_changes(case: Case) -> Iterator[Finding]:
    """Find where today's file is made otherwise than the newest archive of the same adapter.

    Raises:
        NotCovered: there is none.
    """
    name = case["golden"].fact("adapter")[0]
    own = [archive for archive in archives(case) if archive.adapter == name]
    if not own:
        raise NotCovered(f"no golden archive of {name} was given")
    newest = own[-1]
    today: dict[str, str] = case["files"].fact("structure")[0]
    # The cause may be another torch, or what this suite looks at, which is why they are told.
    made = ", ".join(f"{name} {version}" for name, version in newest.versions.items())
    note = f"if this is meant, record a new archive with --cplife-record-golden; it is of {made}"
    parts = [*newest.structure, *(part for part in today if part not in newest.structure)]
    changed = [part for part in parts if newest.structure.get(part) != today.get(part)]
    for part in changed:
        yield Violation(
            part,
            newest.structure.get(part, _ABSENT),
            today.get(part, _ABSENT),
            f"the file of today against {newest.name}",
            note=note,
        )
    yield Measurement(f"parts of {newest.name} ({len(parts)}) that changed", len(changed), 0.0)
