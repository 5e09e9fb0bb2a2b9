"""Prove from samples that a world can never go on, and say which rank is to blame.

The proof: every rank that has not finished is blocked waiting for others, two looks apart nothing
in any of them has moved, and what they wait for does not fit together. Ranks that all wait in the
same collective prove nothing; they may be slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pytest_cplife.launchers.recorder import Op
from pytest_cplife.launchers.samples import Glance, Sample


@dataclass(frozen=True, slots=True)
class Clash:
    """What does not fit together, in one collective of one group.

    Attributes:
        rank: the rank to blame.
        text: the fault in words.
        waiting: how many ranks wait for this one.
    """

    rank: int
    text: str
    waiting: int


def unmoved(
    first: Mapping[int, Glance], second: Mapping[int, Glance], finished: frozenset[int]
) -> bool:
    """Whether there are ranks that have not finished, and none of them has moved."""
    unfinished = second.keys() - finished
    return bool(unfinished) and all(
        rank in first and first[rank].fingerprint == second[rank].fingerprint for rank in unfinished
    )


def proved(
    first: Mapping[int, Glance], second: Mapping[int, Sample], finished: frozenset[int]
) -> bool:
    """Whether two looks at the ranks prove that the unfinished ones wait for ever.

    Args:
        first, second: looks at every rank, finished ones too.
        finished: ranks that had returned before the first look.
    """
    if first.keys() != second.keys() or not unmoved(first, second, finished):
        return False
    now = {rank: s for rank, s in second.items() if rank not in finished}
    if any(s.standing not in ("collective", "rendezvous") for s in now.values()):
        return False
    if any(_is_late(rank, second) for rank in now):
        return False
    # Also those that have returned: their threads may still have to answer a connection.
    if not all(second[rank].has_looked_since(first[rank]) for rank in first):
        return False
    if find_clashes(second, finished):
        return True
    # Making a group or passing a tensor leaves no entry. All ranks making a group may be slow; a
    # rank that makes one while the others are elsewhere waits for ever.
    functions = {sample.function for sample in now.values()}
    waiting = any(sample.standing == "rendezvous" for sample in now.values())
    return waiting and (bool(finished) or len(functions) > 1 or functions <= {"recv", "send"})


def _is_late(rank: int, samples: Mapping[int, Sample]) -> bool:
    """Whether the rank is still making a group that another of its members already has."""
    mine = samples[rank]
    return mine.standing == "rendezvous" and any(
        rank in ranks and name not in mine.groups
        for other in samples.values()
        for name, ranks in other.groups.items()
    )


def find_clashes(samples: Mapping[int, Sample], finished: frozenset[int]) -> list[Clash]:
    """Every rank that is not where others wait for it, the most blamed first.

    Args:
        samples: looks at every rank that could be asked, finished ones too.
        finished: ranks that have returned from the call.
    """
    groups = {name: tuple(ranks) for s in samples.values() for name, ranks in s.groups.items()}
    clashes = find_mismatches({rank: s.ops for rank, s in samples.items()}, groups)
    for group, number in sorted({(o.group, o.number) for s in samples.values() for o in s.pending}):
        waits = {
            rank: op
            for rank, sample in samples.items()
            for op in sample.pending
            if (op.group, op.number) == (group, number)
        }
        entered = {
            rank
            for rank, sample in samples.items()
            if any((op.group, op.number) == (group, number) for op in sample.ops)
        }
        op = next(iter(waits.values()))
        for rank in groups.get(group, ()):
            if rank not in entered and rank in samples:
                did = _did(rank, samples[rank], finished)
                text = f"rank {rank} {did}, while {_ranks_wait(waits)} in {op} on {_on(op, groups)}"
                clashes.append(Clash(rank, text, len(waits)))
    blamed: Counter[int] = Counter()
    for clash in clashes:
        blamed[clash.rank] += clash.waiting
    return sorted(clashes, key=lambda c: (-blamed[c.rank], c.rank))


def find_mismatches(
    ops: Mapping[int, Sequence[Op]], groups: Mapping[str, tuple[int, ...]]
) -> list[Clash]:
    """The first collective of every group that its ranks did not enter alike."""
    entered: dict[str, dict[int, dict[int, Op]]] = {}
    for rank, mine in ops.items():
        for op in mine:
            entered.setdefault(op.group, {}).setdefault(op.number, {})[rank] = op
    clashes = []
    for numbers in entered.values():
        for _, by_rank in sorted(numbers.items()):
            kinds = Counter(op.likeness for op in by_rank.values())
            if len(kinds) == 1:
                continue
            usual, _ = kinds.most_common(1)[0]
            others = [rank for rank, op in sorted(by_rank.items()) if op.likeness == usual]
            for rank, op in sorted(by_rank.items()):
                if op.likeness != usual:
                    shown = by_rank[others[0]]
                    place = _on(op, {op.group: sorted(by_rank), **groups})
                    text = (
                        f"rank {rank} entered {op}, but {_ranks(others)} entered {shown} on {place}"
                    )
                    clashes.append(Clash(rank, text, len(others)))
            break
    return clashes


def _ranks(ranks: Collection[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))


def _ranks_wait(ranks: Collection[int]) -> str:
    return f"{_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def _on(op: Op, groups: Mapping[str, Sequence[int]]) -> str:
    return f"group {op.group!r} {list(groups.get(op.group, ()))}"


def _did(rank: int, sample: Sample, finished: frozenset[int]) -> str:
    if rank in finished:
        return "has returned without entering it"
    if sample.standing == "collective" and sample.pending:
        return f"waits in {sample.pending[0]} on {_on(sample.pending[0], sample.groups)}"
    return describe(sample)


def describe(sample: Sample) -> str:
    """What a rank is doing, in words."""
    if sample.standing == "collective" and sample.pending:
        op = sample.pending[0]
        return f"waits in {op} on {_on(op, sample.groups)} ({sample.place})"
    if sample.standing == "rendezvous":
        return f"waits for other ranks ({sample.place})"
    return f"is outside any collective ({sample.place})"
