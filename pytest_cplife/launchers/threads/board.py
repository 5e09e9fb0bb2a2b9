"""The store of a world: what one rank posts, the others read, and waiting for it is a wait."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pytest_cplife.launchers.threads import private
from pytest_cplife.launchers.threads.turns import Turns

Board = dict[str, bytes]


class RankStore(private.Store):
    """One rank's view of the board that all ranks of a world share.

    torch's own stores block the thread that waits, and with it the turn; here another rank runs
    until the key is there.
    """

    def __init__(self, board: Board, rank: int, turns: Turns) -> None:
        super().__init__()
        self._board = board
        self._rank = rank
        self._turns = turns

    def set(self, key: str, value: str | bytes) -> None:
        self._board[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._board[key]

    def add(self, key: str, amount: int) -> int:
        total = int(self._board.get(key, b"0")) + amount
        self._board[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        known = self._board.get(key)
        if (known is None and not expected) or known == _bytes(expected):
            self._board[key] = _bytes(desired)
        return self._board.get(key, _bytes(expected))

    def check(self, keys: Sequence[str]) -> bool:
        found = all(key in self._board for key in keys)
        if not found:
            # Who polls needs the others to run, or the answer would never change.
            self._turns.pause(self._rank, lambda: f"Store.check of {', '.join(keys)}")
        return found

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._turns.wait(
            self._rank,
            lambda: all(key in self._board for key in keys),
            lambda: f"Store.wait for {', '.join(key for key in keys if key not in self._board)}",
        )

    def delete_key(self, key: str) -> bool:
        return self._board.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._board)

    def list_keys(self) -> list[str]:
        return list(self._board)

    def has_extended_api(self) -> bool:
        return True

    def append(self, key: str, value: str | bytes) -> None:
        self._board[key] = self._board.get(key, b"") + _bytes(value)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def set_timeout(self, timeout: timedelta) -> None:
        """Nothing waits by the clock here."""

    def clone(self) -> RankStore:
        return self


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
