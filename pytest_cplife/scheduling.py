"""Under xdist, the tests of one mesh go to one worker, where they share their evidence.

xdist's own ``--dist=loadgroup`` does so by writing the group into the test's id, and ids
have to be the same with and without workers. So the mesh is read from the id instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest

_PREFIX = "conformance/"


class MeshScheduling(LoadScopeScheduling):
    """One work unit per mesh of the suite; every other test is a unit of its own."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """The work unit that `nodeid` belongs to."""
    _, bracket, mesh = nodeid.partition("[")
    return f"mesh {mesh.rstrip(']')}" if bracket and nodeid.startswith(_PREFIX) else nodeid
