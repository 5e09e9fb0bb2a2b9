"""Connections to rank 0: known by a token, with places numbered per world."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_cplife.launchers.messages import Place
from pytest_cplife.launchers.torchrun.given import Given
from pytest_cplife.launchers.torchrun.hub import Hub
from pytest_cplife.launchers.torchrun.orders import Here
from pytest_cplife.launchers.torchrun.switchboard import Switchboard, wait_until
from pytest_cplife.launchers.torchrun.wire import Address, Hello, Purpose, connect, listen


@pytest.fixture
def board() -> Iterator[Switchboard]:
    made = Switchboard(*listen("127.0.0.1"))
    yield made
    made.close()


def test_an_address_travels_as_text(board: Switchboard) -> None:
    assert Address.parse(str(board.address)) == board.address


def test_who_knows_the_token_is_filed_by_world_rank_and_purpose(board: Switchboard) -> None:
    control = connect(board.address, Hello(7, 2, Purpose.CONTROL))
    watch = connect(board.address, Hello(7, 2, Purpose.WATCH))
    found: list[Any] = []

    def complete() -> bool:
        taken = board.take(7, 2)
        found.extend([] if taken is None else taken)
        return bool(found)

    assert wait_until(board, complete, 5.0)
    assert board.take(7, 2) is None
    for mine, theirs, word in ((control, found[0], "c"), (watch, found[1], "w")):
        mine.send_object(word, 1.0)
        assert theirs.receive_object(1.0) == word
        mine.close()
        theirs.close()


def test_a_stranger_is_turned_away_and_nothing_of_his_is_unpickled(board: Switchboard) -> None:
    stranger = socket.create_connection((board.address.host, board.address.port))
    stranger.sendall(b"\0" * 200)
    stranger.settimeout(5.0)
    board.look(1.0)
    board.look(1.0)
    with pytest.raises(ConnectionResetError):
        assert stranger.recv(1) == b"", "the connection is still open"
        raise ConnectionResetError
    stranger.close()
    assert not board.links


def test_one_that_says_nothing_keeps_nobody_waiting(board: Switchboard) -> None:
    silent = socket.create_connection((board.address.host, board.address.port))
    agent = connect(board.address, Hello(0, 1, Purpose.AGENT))
    agent.send_object(Here(0, "somewhere", 1), 1.0)
    assert wait_until(board, lambda: 1 in board.links and board.links[1].here is not None, 0.9)
    silent.close()
    agent.close()
    assert wait_until(board, lambda: bool(board.lost), 5.0)
    assert str(board.lost[0]) == "rank 1 on somewhere (process 1)"
    assert board.lost[0].lost == "has died"


@pytest.mark.parametrize(
    ("nodes", "size", "expected"),
    [
        ((0, 0, 1, 1), 4, [(0, 2, 0), (1, 2, 0), (0, 2, 1), (1, 2, 1)]),
        ((0, 0, 1, 1), 3, [(0, 2, 0), (1, 2, 0), (0, 1, 1)]),
        ((0, 1, 0, 1), 3, [(0, 2, 0), (0, 1, 1), (1, 2, 0)]),
        ((0, 2, 5), 3, [(0, 1, 0), (0, 1, 1), (0, 1, 2)]),
    ],
)
def test_places_are_numbered_within_the_world(
    board: Switchboard,
    nodes: tuple[int, ...],
    size: int,
    expected: list[tuple[int, int, int]],
) -> None:
    agents = []
    for rank, node in enumerate(nodes):
        agents.append(connect(board.address, Hello(0, rank, Purpose.AGENT)))
        agents[-1].send_object(Here(node, "host", rank), 1.0)
    hub = Hub(Given("torchrun", 0, len(nodes), 0, "127.0.0.1", 1), board, 0, 5.0)
    try:
        hub.gather()
        assert list(hub.places(size)) == [Place(*place) for place in expected]
    finally:
        hub.restore_signals()
        for agent in agents:
            agent.close()
