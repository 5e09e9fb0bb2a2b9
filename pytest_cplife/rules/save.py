"""SAVE: the plain checkpoint and what it holds."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_cplife.evidence.filing import WRAPPER_PARTS, FileRecord
from pytest_cplife.evidence.records import Record, TensorRecord
from pytest_cplife.evidence.run import Moment, RunEvidence
from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.common import compare
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.param import serial_tensors
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule

_FILE = ("saving", "files")
_BLOAT = 1.2


@rule(
    "SAVE-01",
    "saving completes",
    statement="save(path) completes on every rank, and when it has, the checkpoint is there for all"
    " of them.",
    why="A rank that returns early loads, or is killed, before the file is whole.",
    cause="A missing barrier after the write, or a gather that not every rank enters.",
    runs=("saving",),
)
def saving_completes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SAVE-01", "saving")
    yield from written(case["saving"])


def written(run: RunEvidence) -> Iterator[Finding]:
    missing = tuple(rank for rank, there in enumerate(run.fact("saved")) if not there)
    if missing:
        yield Violation(
            "checkpoint", "at the path that was given", "nothing", run.name, ranks=missing
        )


@rule(
    "SAVE-02",
    "no dtensor in the file",
    statement="The payload holds no DTensor, however deep: model, optimizers, averages, objects.",
    why="A pickled DTensor carries one rank's shard and a mesh that exists nowhere else.",
    cause="state_dict() saved as it is, or a conversion that stops at the model.",
    runs=_FILE,
)
def no_dtensor(case: Case) -> Iterator[Finding]:
    file = case["files"].file("saved")
    for path in file.dtensors:
        yield Violation(path, "a plain tensor", "a DTensor", "file")


@rule(
    "SAVE-03",
    "the file reads without a process group",
    statement="A process without a process group reads the checkpoint, on the CPU, and finds the"
    " model's state in it.",
    why="A file that only its own cluster can read is no archive, and evaluation cannot use it.",
    cause="Tensors of another device or DTensors in the payload, or a layout that is not known:"
    " then override read_checkpoint.",
    runs=_FILE,
)
def file_reads(case: Case) -> Iterator[Finding]:
    yield from completes(case, "SAVE-03", "files")
    case["files"].file("saved")


@rule(
    "SAVE-04",
    "file keys are the serial keys",
    statement="The model's state in the file has exactly the keys of the serial model's"
    " state_dict(), in its order, placeholders included, under no prefix but one that the adapter's"
    " own load_serial() knows of, and no wrapper's prefix is in any name anywhere in the file.",
    why="Another key is a weight that is silently left at its initial value, or a refused load.",
    cause="A wrapper's prefix (module., _orig_mod., _checkpoint_wrapped_module.), a filter on"
    " requires_grad, or buffers left out.",
    runs=("serial", *_FILE),
)
def file_keys(case: Case) -> Iterator[Finding]:
    file = case["files"].file("saved")
    expected = list(serial_tensors(case, "state_dict"))
    keys = [key for key, value in file.model.items() if isinstance(value, TensorRecord)]
    wrapped = bool(set(file.prefix.split(".")) & set(WRAPPER_PARTS))
    if file.prefix and (wrapped or not case.declared.loads_serially):
        wanted = "keys without a prefix"
        if not wrapped:
            wanted += ", or an adapter whose load_serial() takes it off"
        yield Violation(f"{file.prefix}*", wanted, f"prefix {file.prefix!r}", "file")
    for name in expected:
        if name not in keys:
            yield Violation(name, "in the file", "missing", "file")
    for key in keys:
        if key not in expected:
            yield Violation(key, "no such key", "in the file", "file")
    if sorted(keys) == sorted(expected) and keys != expected:
        at = next(i for i, (a, b) in enumerate(zip(keys, expected, strict=True)) if a != b)
        yield Violation(keys[at], f"{expected[at]} at position {at}", keys[at], "file")
    for path in file.wrapped:
        yield Violation(path, "a serial name", "a wrapper's part in it", "file")


@rule(
    "SAVE-05",
    "file holds the full live values",
    statement="Each parameter and persistent buffer in the file has the full shape, the dtype and,"
    " bit for bit, the value that the ranks' shards make up just before the save.",
    why="One rank's shard, a rounded or an older value is what every later run starts from.",
    cause="to_local() instead of full_tensor(), a gather in another order than the sharding, a"
    " cast, or a copy taken at another time.",
    runs=_FILE,
)
def file_values(case: Case) -> Iterator[Finding]:
    run = case["saving"]
    yield from file_model(case, case["files"].file("saved"), run, run.at("before save"), "file")


def file_model(
    case: Case, file: FileRecord, run: RunEvidence, live: Moment, moment: str
) -> Iterator[Finding]:
    """Compare the model's state in a file with the live one."""
    persistent = set(live.ranks[0].persistent)
    expected = {
        name: records
        for name, records in (live.parameters | live.buffers).items()
        if name in persistent and name in file.model
    }
    observed = {name: [file.model[name]] for name in expected}
    if not expected:
        yield Violation("weights", "under the live model's names", "none", moment)
    yield from compare(
        case, run.assembler, "weights in the file", expected, observed, moment=moment
    )


@rule(
    "SAVE-06",
    "file holds the full optimizer state",
    statement="For each parameter with optimizer state the file has every entry, in full shape and"
    " with the live value, bit for bit.",
    why="Without its moments Adam's next steps are those of a fresh start, at a late step's lr.",
    cause="Only rank 0's shard of the state is written, or entries of some parameters are dropped.",
    runs=_FILE,
    events=("optimizer state",),
)
def file_optimizer(case: Case) -> Iterator[Finding]:
    run = case["saving"]
    yield from file_state(case, case["files"].file("saved"), run, run.at("before save"), "file")


def file_state(
    case: Case, file: FileRecord, run: RunEvidence, live: Moment, moment: str
) -> Iterator[Finding]:
    """Compare the optimizer state in a file with the live one."""
    if not file.optimizers:
        raise NotCovered(
            "no optimizer state was recognised in the file (a mapping with 'state' and"
            " 'param_groups'); OPT-01 and OPT-02 judge what comes back"
        )
    observed: dict[str, list[Record]] = {}
    for position, optimizer in enumerate(file.optimizers):
        names = _names_by_key(file, position, live)
        for key, entries in optimizer.state.items():
            for entry, record in entries.items():
                observed[f"{names.get(key, key)}[{entry}]"] = [record]
    # A file may keep a step count as a number where the optimizer has a tensor, or the reverse;
    # whether it comes back as what it was is for OPT-07 to say.
    expected: dict[str, list[Record]] = {
        name: records
        for name, records in live.optimizer_state.items()
        if name not in observed or type(records[0]) is type(observed[name][0])
    }
    observed = {n: r for n, r in observed.items() if n in expected or n not in live.optimizer_state}
    yield from compare(
        case, run.assembler, "optimizer state in the file", expected, observed, moment=moment
    )


def _names_by_key(file: FileRecord, position: int, live: Moment) -> dict[str, str]:
    """FQN by integer key, by the order of the live groups; nothing to map where keys are FQNs."""
    if not file.optimizers[position].integer_keys:
        return {}
    keys = [key for group in file.optimizers[position].groups for key in group.names]
    names = [name for group in live.groups if group.optimizer == position for name in group.names]
    return dict(zip(keys, names, strict=False))


@rule(
    "SAVE-10",
    "the file holds only what is needed",
    statement="No tensor in the file drags a storage along that is much larger than itself.",
    why="A shard saved as a view writes the whole tensor: files of world size times their content.",
    cause="torch.save of a slice or of a view into a flat buffer; clone() it.",
    level="should",
    runs=_FILE,
)
def no_bloat(case: Case) -> Iterator[Finding]:
    file = case["files"].file("saved")
    for path, size, needed in file.storages:
        # A few hundred bytes of rounding are nobody's fault.
        if size > needed * _BLOAT + 512:
            yield Violation(path, f"{needed} bytes", f"a storage of {size} bytes", "file")
    total = sum(size for _, size, _ in file.storages)
    need = sum(needed for _, _, needed in file.storages)
    yield Measurement("bytes stored per byte needed", total / max(need, 1), _BLOAT)
