"""What the ranks of a world have called: collectives and messages, matched before they start.

An operation starts when its last member has called it, and then on behalf of all of them. So gloo
never waits for a rank, and what cannot be matched (other operation, shape or dtype) is found
before gloo could hang on it, return garbage or abort the process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_cplife.launchers.threads.stops import Abandoned, Desync

Start = Callable[[Any], Any]
"""Starts one member's part on its backend and returns the backend's work."""


@dataclass(slots=True)
class Part:
    """One rank's part in an operation: what starts it, and what came of that."""

    start: Start
    begun: bool = False
    work: Any = None
    error: BaseException | None = None
    source: int = -1

    def begin(self, backend: Any) -> None:
        try:
            self.work = self.start(backend)
        except Exception as error:
            # It belongs to the rank whose part this is, not to the one that happened to be last.
            self.error = error
        self.begun = True


@dataclass(frozen=True, slots=True)
class Signature:
    """A collective as its members must agree on it.

    Attributes:
        name: of the operation.
        agreed: what has to be equal on every member.
        shown: what messages say about it beyond the name.
        sent, expected: elements that go to and come from each member, where members may differ.
        moves: whether there is anything for the backend to do.
    """

    name: str
    agreed: tuple[object, ...] = ()
    shown: tuple[object, ...] = ()
    sent: tuple[int, ...] | None = None
    expected: tuple[int, ...] | None = None
    moves: bool = True

    def text(self, number: int) -> str:
        details = ", ".join(_show(detail) for detail in self.shown)
        return f"{self.name} #{number}" + (f" ({details})" if details else "")


def _show(detail: object) -> str:
    """Tensors are given as ``(shape, dtype)``."""
    if isinstance(detail, tuple) and len(detail) == 2:
        return f"{list(detail[0])} {str(detail[1]).removeprefix('torch.')}"
    return str(detail)


@dataclass(slots=True)
class Collective:
    """One operation of a group, while not all members have called it."""

    circle: Circle
    number: int
    signature: Signature
    first: int
    parts: dict[int, Part] = field(default_factory=dict)
    signatures: dict[int, Signature] = field(default_factory=dict)

    def text(self) -> str:
        missing = [m for r, m in self.circle.members.items() if r not in self.parts]
        text = f"{self.signature.text(self.number)} on {self.circle.text()}"
        return f"{text}, for {_ranks(missing)}" if missing else text


@dataclass(slots=True)
class Circle:
    """A process group as all its members share it; members are global ranks by group rank."""

    size: int
    connect: Callable[[int], list[Any]]
    discard: Callable[[list[Any], Sequence[int]], None]
    name: str = ""
    invited: Sequence[int] | None = None
    members: dict[int, int] = field(default_factory=dict)
    mail: Mail = field(init=False)
    _open: dict[int, Collective] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)
    _backends: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mail = Mail(self)

    @property
    def complete(self) -> bool:
        return len(self.members) == self.size

    @property
    def backends(self) -> list[Any]:
        """One backend per member, connected when first needed."""
        if not self._backends:
            self._backends = self.connect(self.size)
        return self._backends

    @property
    def outstanding(self) -> list[Collective]:
        return list(self._open.values())

    def text(self) -> str:
        members = [self.members[rank] for rank in sorted(self.members)]
        return f"group {self.name or '(new)'} of {_ranks(members)}"

    def creation_text(self) -> str:
        """What a rank waits for while the group is being made."""
        present = sorted(self.members.values())
        if self.invited is None:
            missing = f"{self.size - len(present)} more"
        else:
            missing = _ranks([rank for rank in self.invited if rank not in present])
        return f"the creation of group {self.name or '(new)'} by {_ranks(present)}, for {missing}"

    def enter(self, rank: int, signature: Signature, start: Start) -> tuple[Part, Collective]:
        """Member `rank` calls its next collective; the last one to do so starts it.

        Raises:
            Desync: another member called something else at this place.
        """
        number = self._counts.get(rank, 0) + 1
        self._counts[rank] = number
        me = self.members[rank]
        call = self._open.get(number)
        if call is None:
            call = self._open[number] = Collective(self, number, signature, first=me)
        elif (call.signature.name, call.signature.agreed) != (signature.name, signature.agreed):
            raise Desync(
                f"rank {me} calls {signature.text(number)} on {self.text()}, "
                f"but rank {call.first} called {call.signature.text(number)}"
            )
        part = call.parts[rank] = Part(start)
        call.signatures[rank] = signature
        if len(call.parts) == self.size:
            del self._open[number]
            _check_sizes(self, number, call.signatures)
            self._start(call)
        return part, call

    def _start(self, call: Collective) -> None:
        for member in range(self.size):
            call.parts[member].begin(self.backends[member] if call.signature.moves else None)
        failed = [rank for rank, part in call.parts.items() if part.error is not None]
        if failed and len(failed) < self.size:
            # gloo now waits for the failed ones, and for ever; nobody may wait for gloo.
            blamed = _ranks([self.members[rank] for rank in failed])
            for part in call.parts.values():
                part.error = part.error or Abandoned(f"{blamed} failed in {call.text()}")
                part.work = None
            self.discard(self._backends, failed)
            self._backends = []

    def number(self, rank: int) -> int:
        """How many collectives member `rank` has called."""
        return self._counts.get(rank, 0)


def _check_sizes(circle: Circle, number: int, signatures: Mapping[int, Signature]) -> None:
    for sender, signature in signatures.items():
        for receiver, count in enumerate(signature.sent or ()):
            expected = signatures[receiver].expected
            if expected is not None and expected[sender] != count:
                raise Desync(
                    f"{signature.text(number)} on {circle.text()}: rank {circle.members[sender]} "
                    f"sends {count} element(s) to rank {circle.members[receiver]}, which expects "
                    f"{expected[sender]}"
                )


@dataclass(frozen=True, slots=True)
class Letter:
    """One side of a message: a posted send or receive."""

    part: Part
    elements: int
    dtype: object


class Mail:
    """Point-to-point messages of one group, matched in the order in which they were posted."""

    def __init__(self, circle: Circle) -> None:
        self._circle = circle
        self._sent: dict[tuple[int, int, int], deque[Letter]] = {}
        self._awaited: dict[tuple[int | None, int, int], deque[Letter]] = {}

    @property
    def outstanding(self) -> int:
        boxes = (*self._sent.values(), *self._awaited.values())
        return sum(len(box) for box in boxes)

    def send(self, source: int, target: int, tag: int, letter: Letter) -> None:
        for claimed in (source, None):
            box = self._awaited.get((claimed, target, tag))
            if box:
                self._deliver(source, target, letter, box.popleft())
                return
        self._sent.setdefault((source, target, tag), deque()).append(letter)

    def receive(self, source: int | None, target: int, tag: int, letter: Letter) -> None:
        """Post a receive; `source` None takes the message of any member, lowest rank first."""
        candidates = range(self._circle.size) if source is None else (source,)
        for candidate in candidates:
            box = self._sent.get((candidate, target, tag))
            if box:
                self._deliver(candidate, target, box.popleft(), letter)
                return
        self._awaited.setdefault((source, target, tag), deque()).append(letter)

    def _deliver(self, source: int, target: int, sent: Letter, awaited: Letter) -> None:
        if (sent.elements, sent.dtype) != (awaited.elements, awaited.dtype):
            members = self._circle.members
            raise Desync(
                f"rank {members[source]} sends {sent.elements} element(s) of {sent.dtype} to rank "
                f"{members[target]}, which expects {awaited.elements} of {awaited.dtype} "
                f"({self._circle.text()})"
            )
        sent.part.begin(self._circle.backends[source])
        awaited.part.source = source
        awaited.part.begin((self._circle.backends[target], source))


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + (", ".join(map(str, ranks)) or "none")
