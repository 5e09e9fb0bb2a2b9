"""Making a rank as good as new between two calls."""

from __future__ import annotations

import os
import random
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pytest_cplife.launchers.simple.private import process_groups

_SEED = 0


@dataclass(frozen=True, slots=True)
class Baseline:
    """What a rank's process-wide state is before the first call."""

    environ: dict[str, str]
    directory: Path
    path: list[str]
    dtype: torch.dtype
    threads: int
    filters: list[Any]

    @classmethod
    def take(cls) -> Baseline:
        return cls(
            environ=dict(os.environ),
            directory=Path.cwd(),
            path=list(sys.path),
            dtype=torch.get_default_dtype(),
            threads=torch.get_num_threads(),
            filters=list(warnings.filters),
        )

    def restore(self, groups: set[Any]) -> None:
        """Put everything back, seed the random streams, and end process groups not in `groups`."""
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.directory)
        sys.path[:] = self.path
        warnings.filters[:] = self.filters  # type: ignore[index]
        torch.set_default_dtype(self.dtype)
        torch.set_default_device(None)
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(False)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        torch.manual_seed(_SEED)
        np.random.seed(_SEED)
        random.seed(_SEED)
        for group in process_groups():
            if group not in groups:
                dist.destroy_process_group(group)
