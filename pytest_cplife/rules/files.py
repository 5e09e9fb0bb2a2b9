"""What a file holds beside the weights, and whether two files hold the same."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.filing import FileRecord
from pytest_cplife.evidence.records import Record, TensorRecord
from pytest_cplife.evidence.run import Moment, RunEvidence
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import Table, compare
from pytest_cplife.rules.model import Finding, Violation


def file_averages(
    case: Case, file: FileRecord, run: RunEvidence, live: Moment, moment: str
) -> Iterator[Finding]:
    """Compare the averages in a file with the live ones.

    Raises:
        NotCovered: the run has none, or none were recognised in the file.
    """
    if live.ranks[0].ema is None:
        raise NotCovered("the run has no averaged weights (TrainingRun.ema is None)")
    if file.ema is None:
        raise NotCovered(
            "no averages were recognised in the file (a mapping of tensors by name under a key that"
            " says so: ema, swa, average, shadow); EMA-03 judges what comes back"
        )
    expected = live.ema
    # A file may have both names of a tied pair, where the live average has one.
    tied = {record.identity for name, record in _named(live).items() if name in expected}
    observed: Table = {
        name: [record]
        for name, record in file.ema.items()
        if name in expected or name not in _named(live) or _named(live)[name].identity not in tied
    }
    yield from compare(
        case, run.assembler, "averages in the file", expected, observed, moment=moment
    )


def _named(live: Moment) -> dict[str, TensorRecord]:
    return live.ranks[0].parameters


def same_file(
    case: Case, run: RunEvidence, before: FileRecord, after: FileRecord, moment: str
) -> Iterator[Finding]:
    """Find what one file has and the other has not, or has with another value.

    Beyond the parts that are recognised only presence counts: times of day and random streams are
    as they should be when they differ.
    """
    for what, a, b in (
        ("weights", _single(before.model), _single(after.model)),
        ("averages", _single(before.ema or {}), _single(after.ema or {})),
        ("optimizer state", _state(before), _state(after)),
        ("hyperparameters", _groups(before), _groups(after)),
    ):
        yield from compare(case, run.assembler, f"{what} in the file", a, b, moment=moment)
    for path in sorted(set(before.paths) - set(after.paths)):
        yield Violation(path, "in the file", "missing", moment)
    for path in sorted(set(after.paths) - set(before.paths)):
        yield Violation(path, "no such entry", "in the file", moment)


def _single(records: dict[str, Record]) -> Table:
    return {name: [record] for name, record in records.items()}


def _state(file: FileRecord) -> Table:
    return {
        f"optimizer {position}: {key}[{entry}]": [record]
        for position, optimizer in enumerate(file.optimizers)
        for key, entries in optimizer.state.items()
        for entry, record in entries.items()
    }


def _groups(file: FileRecord) -> Table:
    return {
        f"optimizer {position} group {group.index}: {key}": [record]
        for position, optimizer in enumerate(file.optimizers)
        for group in optimizer.groups
        for key, record in group.values.items()
    }
