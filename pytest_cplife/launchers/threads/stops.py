"""Why a rank cannot go on: exceptions that end it, whatever its program catches."""

from __future__ import annotations


class RankStopped(BaseException):
    """Ends a rank's program from inside the operation in which it waits.

    Not an :class:`Exception`: a peer that dies in another process takes the rest with it, and so
    a program's own ``except Exception`` must not keep a rank going that nobody answers any more.
    """


class Deadlock(RankStopped):
    """No rank can go on; the message says what each of them waits in."""


class Desync(RankStopped):
    """Two ranks of a group called different operations at the same place of its sequence."""


class Abandoned(RankStopped):
    """The rank waited for one that has failed or that did not finish in time."""
