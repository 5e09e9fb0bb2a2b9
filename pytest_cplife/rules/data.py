"""DATA: the stream of samples goes on where it stopped, and is split over the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Violation
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
    " none.",
    runs=("serial", "uninterrupted"),
    needs=("sample_ids",),
)
def global_batch(case: Case) -> Iterator[Finding]:
    wanted = set(case["serial"].fact("sample_ids first")[0])
    ranks = case["uninterrupted"].fact("sample_ids first")
    taken = Counter(sample for ids in ranks for sample in set(ids))
    moment = "uninterrupted: first step"
    for sample in sorted(wanted - taken.keys())[:8]:
        yield Violation(f"sample {sample}", "taken by a rank", "taken by none", moment)
    for sample in sorted(taken.keys() - wanted)[:8]:
        yield Violation(f"sample {sample}", "not in this batch", "taken", moment)
    # Context- and tensor-parallel ranks work on the same samples together, all of them alike.
    share = Counter(taken.values()).most_common(1)[0][0] if taken else 0
    for sample, count in sorted(taken.items())[:64]:
        if count != share:
            yield Violation(
                f"sample {sample}", f"taken by {share} ranks", f"taken by {count}", moment
            )


def _stretches(case: Case) -> list[str]:
    rest = all("rest" in journal.losses for journal in case["uninterrupted"].ranks)
    return ["next", "rest"] if rest else ["next"]


def _few(ids: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown}, ... ({len(ids)})" if len(ids) > 8 else shown or "none"
