"""The handle of an operation; waiting for it lets other ranks run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pytest_cplife.launchers.threads.ledger import Part
from pytest_cplife.launchers.threads.turns import Turns


class SeveralWorks:
    """Works of a backend that were started together."""

    def __init__(self, works: Sequence[dist.Work]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


class RankWork(dist.Work):
    """One rank's part in an operation, as `torch.distributed` returns it."""

    def __init__(
        self, turns: Turns, rank: int, part: Part, text: Callable[[], str], result: Any
    ) -> None:
        super().__init__()
        self._turns = turns
        self._rank = rank
        self._part = part
        self._text = text
        self._result = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        __tracebackhide__ = True
        self._turns.wait(self._rank, lambda: self._part.begun, self._text)
        self._finish()
        if self._part.error is not None:
            raise self._part.error
        return True

    def _finish(self) -> None:
        # All have called it, so gloo needs nobody's turn to finish.
        work, self._part.work = self._part.work, None
        if work is None:
            return
        try:
            work.wait()
        except Exception as error:
            self._part.error = self._part.error or error

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._part.begun:
            # Who polls needs the others to run, or the answer would never change.
            self._turns.pause(self._rank, lambda: f"Work.is_completed of {self._text()}")
        if self._part.begun:
            # An answer that depended on gloo's speed would differ from run to run.
            self._finish()
        return self._part.begun

    def is_success(self) -> bool:
        return self.is_completed() and self._part.error is None

    def exception(self) -> Exception | None:
        error = self._part.error
        return error if isinstance(error, Exception) else None

    def result(self) -> Any:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        # Waited for at once: who holds a future waits for it in C++, where no turn is given up.
        self.wait()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future

    def source_rank(self) -> int:
        return self._part.source

    _source_rank = source_rank
