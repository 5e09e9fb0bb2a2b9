"""What a plain checkpoint holds, found by structure: common layouts need no configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pytest_cplife.evidence.walk import containers

COUNTER_NAMES = {
    "global_step": ("global_step", "step", "iteration", "iter", "steps"),
    "epoch": ("epoch", "current_epoch"),
}
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_EMA_WORDS = re.compile(r"ema|swa|averag\w*|shadow\w*")
_LIVE_WORDS = re.compile(r"current|live|raw|train(?:ing|ed)?")
_OPTIMIZER_WORDS = re.compile(r"optim|optimizers?|avg|momentum")
_HALF = 0.5


class UnreadableCheckpoint(ValueError):
    """The file could be read but its parts were not found; the message says what was."""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """The parts of a plain checkpoint.

    Attributes:
        model: the model's state by key, as ``load_state_dict`` of the serial model takes it; what
            is changed in it is changed in `payload`.
        optimizers: ``state_dict``-like mappings with ``state`` and ``param_groups``.
        ema: the averaged weights by FQN, None where the file has none.
        counters: ``global_step`` and ``epoch``, where they were found.
        payload: the whole of it, for a deep look.
        prefix: what stood before every key of `model` in the file, such as ``"module."``.
        model_path: where in the payload the model's state was found.
    """

    model: Mapping[str, Any]
    optimizers: Sequence[Mapping[str, Any]] = ()
    ema: Mapping[str, Any] | None = None
    counters: Mapping[str, int] = field(default_factory=dict)
    payload: Any = None
    prefix: str = ""
    model_path: str = ""


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: str
    mapping: Mapping[str, Any]
    prefix: str
    coverage: float

    def stripped(self) -> Mapping[str, Any]:
        return _Stripped(self.mapping, self.prefix) if self.prefix else self.mapping


class _Stripped(MutableMapping[str, Any]):
    """The entries of a mapping under a prefix, without it; edits reach the mapping itself."""

    def __init__(self, mapping: Mapping[str, Any], prefix: str) -> None:
        self._mapping = mapping
        self._prefix = prefix
        if hasattr(mapping, "_metadata"):
            self._metadata = mapping._metadata

    def __getitem__(self, key: str) -> Any:
        return self._mapping[self._prefix + key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._mapping[self._prefix + key] = value  # type: ignore[index]

    def __delitem__(self, key: str) -> None:
        del self._mapping[self._prefix + key]  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[str]:
        for key in self._mapping:
            if isinstance(key, str) and key.startswith(self._prefix):
                yield key.removeprefix(self._prefix)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def read_plain_checkpoint(path: Path, serial_model: torch.nn.Module) -> CheckpointView:
    """Unpickle the file at `path` onto the CPU and find its parts.

    Objects in the payload are allowed by design, so this must only be used on checkpoints of one's
    own making.

    Raises:
        UnreadableCheckpoint: `path` is a directory, or no model state was found.
    """
    if path.is_dir():
        names = ", ".join(sorted(p.name for p in path.iterdir())[:8])
        raise UnreadableCheckpoint(
            f"{path.name} is a directory ({names}): override read_checkpoint, or export_plain, in"
            " the adapter to say how its parts are read"
        )
    # DTensors in a payload (a fault in itself) unpickle only where their class can be found.
    import torch.distributed.tensor

    payload = torch.load(path, map_location="cpu", weights_only=False)
    return find_parts(payload, list(serial_model.state_dict()))


def find_parts(payload: Any, names: Collection[str]) -> CheckpointView:
    """Find model, optimizers, EMA and counters in `payload` by structure.

    Args:
        names: the keys of the serial model's ``state_dict``.

    Raises:
        UnreadableCheckpoint: no mapping of tensors covers half of `names`.
    """
    candidates = [c for path, node in containers(payload) if (c := _candidate(path, node, names))]
    if not candidates:
        seen = [f"{path or 'top level'} ({len(node)})" for path, node in containers(payload)][:8]
        raise UnreadableCheckpoint(
            f"no mapping of tensors covers the {len(names)} keys of the serial model; mappings in"
            f" the file (and their sizes): {', '.join(seen) or 'none'}"
        )
    # Moments may be kept by name as well, and then cover the names as well as the weights do.
    weights = [c for c in candidates if not _says(_OPTIMIZER_WORDS, c)] or candidates
    model = max(
        weights,
        key=lambda c: (not _says(_EMA_WORDS, c), _says(_LIVE_WORDS, c), c.coverage),
    )
    averages = [c for c in candidates if c is not model and _says(_EMA_WORDS, c)]
    if not averages and _says(_LIVE_WORDS, model):
        # Lightning keeps the averages as the model's state, where evaluation finds them, and calls
        # the weights that train the current ones.
        averages = [c for c in weights if c is not model]
    return CheckpointView(
        model=model.stripped(),
        optimizers=_optimizers(payload),
        ema=averages[0].stripped() if averages else None,
        counters=_counters(payload),
        payload=payload,
        prefix=model.prefix,
        model_path=model.path,
    )


def _candidate(path: str, node: Mapping[Any, Any], names: Collection[str]) -> _Candidate | None:
    keys = {key for key, value in node.items() if isinstance(key, str) and torch.is_tensor(value)}
    if not keys or not names:
        return None
    best: tuple[float, str] = (0.0, "")
    for prefix in _prefixes(keys, names):
        covered = sum(prefix + name in keys for name in names)
        best = max(best, (covered / len(names), prefix), key=lambda pair: (pair[0], -len(pair[1])))
    coverage, prefix = best
    if coverage < _HALF:
        return None
    return _Candidate(path, node, prefix, coverage)


def _prefixes(keys: Collection[str], names: Collection[str]) -> set[str]:
    # The prefix, if there is one, stands before every key, so a few names are enough to see it.
    probes = sorted(names, key=len, reverse=True)[:3]
    return {""} | {
        key.removesuffix(name)
        for name in probes
        for key in keys
        if key.endswith("." + name) and key != name
    }


def _says(words: re.Pattern[str], candidate: _Candidate) -> bool:
    return any(words.fullmatch(word.lower()) for word in _WORD.findall(candidate.path))


def _optimizers(payload: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple(
        node
        for _, node in containers(payload)
        if "param_groups" in node and isinstance(node.get("state"), Mapping)
    )


def _counters(payload: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, node in containers(payload):
        if "param_groups" in node or "exp_avg" in node:
            continue
        for name, spellings in COUNTER_NAMES.items():
            for spelling in spellings:
                value = node.get(spelling)
                if name not in found and isinstance(value, int) and not isinstance(value, bool):
                    found[name] = value
    return found
