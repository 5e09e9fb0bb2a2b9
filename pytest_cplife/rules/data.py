"""DATA: the stream of samples goes on where it stopped, and is split over the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_cplife.rules import epochs
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.registry import rule


@rule(
    "DATA-01",
    "the data stream goes on",
    statement="The samples of each rank at the steps after a resume are those of the uninterrupted"
    " run.",
    why="Samples seen twice, or never, change what is learnt, and no loss shows it.",
    cause="A loader that starts again, a position counted in other units, or an epoch's order drawn"
    " anew.",
    runs=("uninterrupted", "resumed"),
    needs=("sample_ids",),
)
def stream_goes_on(case: Case) -> Iterator[Finding]:
    for stretch in _stretches(case):
        expected = case["uninterrupted"].fact(f"sample_ids {stretch}")
        observed = case["resumed"].fact(f"sample_ids {stretch}")
        for rank, (a, b) in enumerate(zip(expected, observed, strict=True)):
            if a != b:
                yield Violation(
                    "sample ids", _few(a), _few(b), f"resumed: {stretch} step", ranks=(rank,)
                )
        if not any(expected):
            yield Violation("sample ids", "some", "none", f"uninterrupted: {stretch} step")


@rule(
    "DATA-02",
    "the global batch does not depend on the mesh",
    statement="Over all ranks the samples of the first step are those of the serial run, each taken"
    " by the same number of ranks.",
    why="A sample that two data-parallel ranks take counts twice, and another one not at all.",
    cause="A sampler that divides by the world size where only some dimensions split the data, or"
    " none; or an order that each rank draws for itself, from a random stream that is not the same"
    " on all ranks.",
    # Both draw from streams as the trainer's start has left them; the suite has seeded neither.
    runs=("serial", "parity"),
    needs=("sample_ids",),
)
def global_batch(case: Case) -> Iterator[Finding]:
    wanted = set(case["serial"].fact("sample_ids first")[0])
    ranks = case["parity"].fact("sample_ids first")
    taken = Counter(sample for ids in ranks for sample in set(ids))
    moment = "parity: first step"
    for sample in sorted(wanted - taken.keys())[:8]:
        yield Violation(f"sample {sample}", "taken by a rank", "taken by none", moment)
    for sample in sorted(taken.keys() - wanted)[:8]:
        yield Violation(f"sample {sample}", "not in this batch", "taken", moment)
    yield from _evenly(ranks, moment)


@rule(
    "DATA-04",
    "the data stream goes on on another mesh",
    statement="After a load from another mesh the samples of the steps that follow are, over all"
    " ranks, those that the other mesh takes, each taken by the same number of ranks.",
    why="A cluster that changes its size otherwise repeats a part of the epoch, or skips one.",
    cause="A position counted in one rank's batches, or a split that is stored instead of made.",
    runs=("onward", "crossed"),
    needs=("sample_ids",),
)
def stream_goes_on_elsewhere(case: Case) -> Iterator[Finding]:
    if case.partner is None:
        raise NotCovered("only one mesh is run, so there is no other to load from")
    for step in (1, 2):
        name = f"sample_ids onward {step}"
        wanted, seen = (
            {sample for ids in case[run].fact(name) for sample in ids}
            for run in ("onward of partner", "crossed")
        )
        moment = f"crossed from {case.partner}: step {step}"
        if not wanted:
            yield Violation("sample ids", "some", "none", moment)
        for sample in sorted(wanted ^ seen)[:8]:
            text = ("taken", "not taken") if sample in wanted else ("not taken", "taken")
            yield Violation(f"sample {sample}", *text, moment)
        yield from _evenly(case["crossed"].fact(name), moment)


def _evenly(ranks: list[tuple[int, ...]], moment: str) -> Iterator[Violation]:
    """Find samples that more ranks take than others; those that work together take the same."""
    taken = Counter(sample for ids in ranks for sample in set(ids))
    share = Counter(taken.values()).most_common(1)[0][0] if taken else 0
    for sample, count in sorted(taken.items())[:64]:
        if count != share:
            yield Violation(
                f"sample {sample}", f"taken by {share} ranks", f"taken by {count}", moment
            )


@rule(
    "DATA-03",
    "each sample is taken once over a stop",
    statement="An epoch that is stopped and resumed, in its middle or at its edge, in the first"
    " epoch or the second, takes each sample as often as one that is not.",
    why="What is repeated, or left out, after every stop weighs more, or nothing, in a long run.",
    cause="Another permutation after the resume, a position that forgets the epoch, or an epoch"
    " that is begun again, or passed over, at its edge.",
    runs=epochs.RUNS,
    needs=("sample_ids",),
)
def each_sample_once(case: Case) -> Iterator[Finding]:
    points, end, epoch = epochs.stops(case)
    for point in points:
        for number in range(end // epoch):
            first, last = number * epoch + 1, (number + 1) * epoch
            if last <= point:
                continue
            wanted = epochs.samples(case, 0, first, last)
            seen = epochs.samples(case, point, first, last)
            moment = f"epoch {number}, stopped after step {point}"
            if not wanted:
                yield Violation("sample ids", "some", "none", moment)
            odd = sorted(s for s in wanted.keys() | seen.keys() if wanted[s] != seen[s])
            for sample in odd[:8]:
                yield Violation(
                    f"sample {sample}",
                    f"taken by {wanted[sample]} ranks in all",
                    f"by {seen[sample]}",
                    moment,
                )
            yield Measurement(f"samples of {moment} ({len(wanted)} compared)", len(odd), 0.0)


def _stretches(case: Case) -> list[str]:
    rest = all("rest" in journal.losses for journal in case["uninterrupted"].ranks)
    return ["next", "rest"] if rest else ["next"]


def _few(ids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown}, ... ({len(ids)})" if len(ids) > 8 else shown or "none"
