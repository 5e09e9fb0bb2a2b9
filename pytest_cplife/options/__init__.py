"""The command line and its ini twins, resolved into one checked value.

Every option has a twin in the ini file (``--cplife-mesh`` and ``cplife_mesh``) except
those that ask for an action. Values stay strings until they are resolved, so that xdist
can hand them to its workers, and a value that cannot be used ends in a
:class:`pytest.UsageError` that says what was found and what is accepted.
"""

from pytest_cplife.options.resolving import resolve, resolve_ranks, resolve_replay
from pytest_cplife.options.table import (
    BACKENDS,
    DEFAULTS,
    DEVICES,
    OPTIONS,
    REPORT_SUFFIXES,
    Option,
    add_options,
)
from pytest_cplife.options.values import Options, RankOptions, ReplayOptions

__all__ = [
    "BACKENDS",
    "DEFAULTS",
    "DEVICES",
    "OPTIONS",
    "REPORT_SUFFIXES",
    "Option",
    "Options",
    "RankOptions",
    "ReplayOptions",
    "add_options",
    "resolve",
    "resolve_ranks",
    "resolve_replay",
]
