"""What the groups and stores of the running world share; one world runs at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_cplife.launchers.threads import private
from pytest_cplife.launchers.threads.board import Board, RankStore
from pytest_cplife.launchers.threads.ledger import Circle
from pytest_cplife.launchers.threads.stops import RankStopped
from pytest_cplife.launchers.threads.turns import Turns, Wait


class Scene:
    """The turns, the board and the groups of one generation of ranks."""

    def __init__(
        self,
        size: int,
        *,
        leave: Callable[[int], None],
        enter: Callable[[int], None],
        stuck: Callable[[Mapping[int, Wait]], Mapping[int, RankStopped]],
    ) -> None:
        self.size = size
        self.turns = Turns(size, leave=leave, enter=enter, stuck=stuck)
        self.board: Board = {}
        self.circles: dict[str, Circle] = {}
        # torch's PrefixStore does not keep the Python object under it alive.
        self._stores = [RankStore(self.board, rank, self.turns) for rank in range(size)]

    def current_rank(self) -> int:
        """The rank whose turn it is."""
        assert self.turns.current is not None
        return self.turns.current

    def store(self, rank: int) -> RankStore:
        return self._stores[rank]

    def circle(self, store: private.Store, group_rank: int, size: int) -> Circle:
        """The group that is being made with `store`, the same object for each of its members.

        A store tells groups apart by the prefix that torch gives it; a prefix that is used again,
        after a group was destroyed, is told apart by how often each member has come.
        """
        visit = store.add(f"visits of {group_rank}", 1)
        fresh = str(len(self.circles))
        uid = store.compare_set(f"visit {visit}", "", fresh).decode()
        if uid not in self.circles:
            self.circles[uid] = Circle(
                size,
                private.connect_gloo,
                private.discard_gloo,
                invited=private.ranks_of_new_group(size),
            )
        return self.circles[uid]

    def leftovers(self) -> list[str]:
        """Operations that some rank has called and that have never started."""
        notes = [
            f"outstanding operation: {call.text()}"
            for circle in self.circles.values()
            for call in circle.outstanding
        ]
        return notes + [
            f"{circle.mail.outstanding} outstanding message(s) on {circle.text()}"
            for circle in self.circles.values()
            if circle.mail.outstanding
        ]


_scenes: list[Scene] = []


def scene() -> Scene:
    """The scene of the running world.

    Raises:
        RuntimeError: no world runs.
    """
    if not _scenes:
        raise RuntimeError("no world of the launcher 'threads' runs")
    return _scenes[-1]


def occupied() -> bool:
    return bool(_scenes)


class Running:
    """While this is entered, `scene` is the running one."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def __enter__(self) -> None:
        _scenes.append(self._scene)

    def __exit__(self, *exception: object) -> None:
        _scenes.remove(self._scene)
