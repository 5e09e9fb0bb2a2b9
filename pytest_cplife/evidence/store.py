"""Tensor bytes on disk, named by their content.

What several ranks or moments share is stored once, memory stays within one tensor, and two
tensors are equal, bit for bit, exactly when their digests are.
"""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_CHUNK = 1 << 26


@dataclass(frozen=True, slots=True)
class TensorStore:
    """A folder of tensor contents; any number of processes and threads may write to it at once."""

    root: Path

    def put(self, tensor: torch.Tensor, *, keep: bool = True) -> str:
        """Keep the bytes of a plain tensor and return their digest; without `keep`, name them only.

        The digest covers dtype and shape, so that an all-zero weight and an all-zero
        bias are not taken for one another.
        """
        raw = _bytes_of(tensor)
        digest = hashlib.blake2b(digest_size=16)
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        for start in range(0, len(raw), _CHUNK):
            digest.update(raw[start : start + _CHUNK])
        name = digest.hexdigest()
        if not keep:
            return name
        target = self.root / name[:2] / name[2:]
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            # Ranks may be threads of one process, or processes of several machines.
            partial = target.with_name(f"{target.name}.{uuid.uuid4().hex}")
            with partial.open("wb") as file:
                file.write(raw)
            partial.replace(target)
        return name

    def get(self, digest: str, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor of that digest, on the CPU.

        Raises:
            FileNotFoundError: nothing of that digest was ever put.
        """
        import torch

        raw = bytearray((self.root / digest[:2] / digest[2:]).read_bytes())
        kind = getattr(torch, dtype.removeprefix("torch."))
        if not raw:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(raw, dtype=torch.uint8).view(kind).reshape(shape)


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch

    plain = tensor.detach()
    if plain.is_quantized or plain.layout is not torch.strided:
        raise TypeError(f"cannot read the bytes of a {plain.layout} tensor of {plain.dtype}")
    # Conjugate and negative views are lazy; their bytes are those of the value they stand for.
    # One element counts as contiguous whatever its stride, and then cannot be viewed as bytes.
    flat = plain.cpu().resolve_conj().resolve_neg()
    flat = flat.clone(memory_format=torch.contiguous_format).reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]
