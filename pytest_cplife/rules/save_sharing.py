"""SAVE: which names of the plain checkpoint share one tensor's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_cplife.evidence.records import Record, TensorRecord
from pytest_cplife.rules.case import Case
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.registry import rule


@rule(
    "SAVE-13",
    "only tied weights share memory in the file",
    statement="Of the model's tensors in the file, no two share a storage that are not one tensor"
    " in the live model.",
    why="What reads the file takes names that share memory for tied, drops one of them, or changes"
    " both in place.",
    cause="Views of one flat buffer, pickled as they are; a copy of each would be let go of it.",
    level="should",
    runs=("saving", "files"),
)
def only_ties_share(case: Case) -> Iterator[Finding]:
    live = case["saving"].at("before save").parameters
    tied = {name: records[0].identity for name, records in live.items()}
    groups = list(_sharing(case["files"].file("saved").model))
    for names in groups:
        first, *others = names
        for name in others:
            # What only the file has is its own name's.
            if tied.get(name, name) != tied.get(first, first):
                yield Violation(name, "memory of its own", f"shares that of {first}", "file")
    yield Measurement("storages behind several names", float(len(groups)), 0.0)


def _sharing(model: Mapping[str, Record]) -> Iterator[list[str]]:
    """Names of tensors over one storage, where there are several."""
    behind: dict[int, list[str]] = {}
    for name, record in model.items():
        if isinstance(record, TensorRecord) and record.storage_bytes:
            behind.setdefault(record.alias, []).append(name)
    yield from (names for names in behind.values() if len(names) > 1)
