"""A program: reads a checkpoint where the trainer's code cannot be imported, and tells in JSON.

It is run as the text of ``python -c`` in an interpreter of its own, and so imports nothing of this
package. ``import torch`` itself loads parts of `torch.distributed`; what can be seen is that
reading loads no more of it and starts no process group.

Its first line says that torch is imported: how long that takes is the machine's affair. Its last
line is the answer.

Arguments: the checkpoint, and the names of top-level packages that are not to be had.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class Absent(MetaPathFinder):
    """Stands before all other finders and refuses some packages."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, path: object = None, target: ModuleType | None = None
    ) -> None:
        if fullname.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)


def main(path: str, *names: str) -> None:
    sys.meta_path.insert(0, Absent(names))
    import torch

    print("ready", flush=True)
    known = set(sys.modules)
    refusal = ""
    try:
        torch.load(path, map_location="cpu", weights_only=False)
    except Exception as error:
        refusal = f"{type(error).__name__}: {error}"
    loaded = sorted(set(sys.modules) - known)
    told = {
        "refusal": refusal,
        "distributed": [name for name in loaded if name.startswith("torch.distributed")],
        "process group": torch.distributed.is_available() and torch.distributed.is_initialized(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
