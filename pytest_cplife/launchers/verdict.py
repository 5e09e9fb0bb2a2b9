"""From what the ranks answered, and what they were seen doing, to the failure of the call."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import replace

from pytest_cplife.launchers.base import RankFailure, WorldFailure
from pytest_cplife.launchers.deadlock import describe, find_clashes
from pytest_cplife.launchers.messages import Failed
from pytest_cplife.launchers.samples import Sample

_CONSEQUENCE = re.compile(
    r"connection closed by peer|connection reset|broken pipe|pair closure|timed out waiting"
    r"|wait timeout|socket closed|remote process exited|recvvalue failed"
    r"|sendbytes failed|failed to recv|software caused connection abort",
    re.IGNORECASE,
)


def is_consequence(failure: Failed) -> bool:
    """Whether the failure only tells that another rank has failed."""
    return failure.kind == "raised" and bool(_CONSEQUENCE.search(failure.message))


def judge(
    failed: Mapping[int, Failed],
    unfinished: list[int],
    finished: frozenset[int],
    samples: Mapping[int, Sample],
    outputs: Mapping[int, str],
    *,
    seconds: float,
    deadline: float,
    deadlocked: bool,
) -> WorldFailure:
    """The failure of one call, the rank to blame first.

    Args:
        failed: what ranks reported, or how they died.
        unfinished: ranks that had to be stopped.
        finished: ranks that returned.
        samples: the last look at the ranks that could be asked.
        outputs: the end of what each rank wrote.
        seconds: how long the call took.
        deadline: how long it might have taken.
        deadlocked: whether the unfinished ranks are proved to wait for ever.
    """
    aborted = any(f.signal == signal.SIGABRT for f in failed.values())
    clashes = find_clashes(samples, finished) if aborted or not failed else []
    story = "; ".join(dict.fromkeys(clash.text for clash in clashes))
    if deadlocked and not clashes and finished:
        story = f"ranks {', '.join(map(str, sorted(finished)))} have returned"
    blamed = [clash.rank for clash in clashes]
    ends = [
        _stopped(rank, samples.get(rank), outputs.get(rank, ""), deadlocked, bool(failed), deadline)
        for rank in unfinished
    ]
    ends.sort(key=lambda f: _blame(f.rank, blamed, samples))
    if failed:
        ends = _reported(failed, outputs) + ends
    elif blamed and blamed[0] in finished:
        ends.insert(0, _absent(blamed[0], outputs.get(blamed[0], ""), deadlocked))
    first = ends[0]
    if story:
        message = f"{story}\n  {_who(first)}" if first.message else story
        first = replace(first, message=message)
    if not failed:  # all but the first are its consequence
        ends[1:] = [replace(end, secondary=True) for end in ends[1:]]
    return WorldFailure((first, *ends[1:]), seconds)


def _who(failure: RankFailure) -> str:
    return f"rank {failure.rank}: {failure.message}"


def _absent(rank: int, output: str, deadlocked: bool) -> RankFailure:
    """A rank that returned while others wait for it: it is to blame, though it did not fail."""
    kind = "Deadlock" if deadlocked else "Timeout"
    return RankFailure(rank=rank, kind="hung", type_name=kind, message="", output=output)


def _reported(failed: Mapping[int, Failed], outputs: Mapping[int, str]) -> list[RankFailure]:
    causes = {rank for rank, failure in failed.items() if not is_consequence(failure)}
    order = sorted(failed, key=lambda n: (bool(causes) and n not in causes, failed[n].moment))
    return [
        RankFailure(
            rank=rank,
            kind=failed[rank].kind,
            type_name=failed[rank].type_name,
            message=failed[rank].message,
            traceback=failed[rank].traceback,
            secondary=bool(causes) and rank not in causes,
            output=outputs.get(rank, ""),
        )
        for rank in order
    ]


def _stopped(
    rank: int,
    sample: Sample | None,
    output: str,
    deadlocked: bool,
    explained: bool,
    deadline: float,
) -> RankFailure:
    if sample is None:
        doing = "did not answer: a thread of it holds the interpreter, or it is stopped"
    else:
        doing = describe(sample)
    if not explained and not deadlocked:
        doing = f"not finished at the deadline of {deadline:g} s: {doing}"
    kind = "Stopped" if explained else "Deadlock" if deadlocked else "Timeout"
    return RankFailure(
        rank=rank,
        kind="hung",
        type_name=kind,
        message=doing,
        traceback="" if sample is None else sample.stack,
        secondary=explained,
        output=output,
    )


def _blame(rank: int, blamed: list[int], samples: Mapping[int, Sample]) -> tuple[bool, int, int]:
    """Ranks outside any collective first: the others wait for them. Then as the clashes say."""
    sample = samples.get(rank)
    outside = sample is None or sample.standing in ("running", "parked")
    return (not outside, blamed.index(rank) if rank in blamed else len(blamed), rank)
