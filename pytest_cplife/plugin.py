"""The pytest plugin: hooks and fixtures, thin, and dormant until it is asked for something.

pytest imports this module in every run that has the package installed, so it imports
nothing but the standard library, pytest and modules that are as light; the hooks that
do something live in :class:`pytest_cplife.hooks.SuiteHooks`, which is registered only
where an adapter is given, and in :class:`pytest_cplife.spmd.hooks.MarkerHooks`, which is
registered only where a test with the marker ``cplife`` is collected.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_cplife import serving
from pytest_cplife.ending import interrupt_on_sigterm
from pytest_cplife.options import add_options, resolve, resolve_ranks, resolve_replay

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pytest_cplife.adapter import LifecycleAdapter
    from pytest_cplife.launchers.base import World
    from pytest_cplife.spmd.parcel import MeshOnRanks

DIST_CHOSEN: pytest.StashKey[bool] = pytest.StashKey()
"""Whether the user chose how xdist distributes tests."""


class _BeforeXdist:
    """A hook of its own, because it has to see the options before xdist fills in its default."""

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_main(
        self, config: pytest.Config
    ) -> Generator[None, pytest.ExitCode | int | None, pytest.ExitCode | int | None]:
        config.stash[DIST_CHOSEN] = config.getoption("dist", "no") != "no"
        return (yield)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    add_options(parser)
    pluginmanager.register(_BeforeXdist(), "cplife-before-xdist")
    pluginmanager.register(serving.Others(), "cplife-others")
    pluginmanager.register(serving.First(), "cplife-first")


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Answer the options that ask for text instead of a test run."""
    rule = config.getoption("cplife_rules")
    template = config.getoption("cplife_new_adapter")
    if rule is None and template is None:
        return None
    from pytest_cplife import actions

    text = actions.rules(rule) if rule is not None else actions.new_adapter(Path(template))
    print(text)
    return 0


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "cplife(mesh, timeout=None): run the test's body on every rank of a mesh, such as "
        "'dp=2,cp=2'.",
    )
    _divide_gpus(config)
    if config.getoption("cplife_selftest"):
        interrupt_on_sigterm(config)
        from pytest_cplife.selfchecking import start_selftest

        start_selftest(config)
        return
    replay = resolve_replay(config)
    if replay is not None:
        interrupt_on_sigterm(config)
        from pytest_cplife.replaying import start_replay

        start_replay(config, replay)
        return
    options = resolve(config)
    if options is not None:
        interrupt_on_sigterm(config)
        from pytest_cplife.hooks import start_suite

        start_suite(config, options)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Ranks on GPUs can be forked only from a process that has not used CUDA; not even a conftest
    that asks whether there is any must do so."""
    chosen = early_config.known_args_namespace.cplife_device
    if (early_config.getini("cplife_device") if chosen is None else chosen) == "cuda":
        from pytest_cplife.launchers.gpus import stay_forkable

        stay_forkable(os.environ)


def _divide_gpus(config: pytest.Config) -> None:
    """A worker of xdist's gets its share, before anything can have looked at the GPUs."""
    worker = getattr(config, "workerinput", None)
    if worker is not None and resolve_ranks(config).device == "cuda":
        from pytest_cplife.launchers.gpus import take_share

        number = int(worker["workerid"].removeprefix("gw"))
        take_share(os.environ, number, worker["workercount"])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Be there for marked tests, and only then."""
    if any(item.get_closest_marker("cplife") for item in items):
        from pytest_cplife.spmd.hooks import MarkerHooks

        config.pluginmanager.register(MarkerHooks(), "cplife-marker")


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Give the suite's modules their stable ids, however they came to be collected."""
    # The cheap half of the question first: this is asked about every module of every run.
    if module_path.parent.name == "selftest":
        from pytest_cplife.selfchecking import selftest_module

        return selftest_module(module_path, parent)
    if module_path.parent.name != "conformance":
        return None
    from pytest_cplife.collection import FOLDER, ConformanceModule, suite_folder

    if module_path.parent.resolve() != suite_folder().resolve():
        return None
    module: ConformanceModule = ConformanceModule.from_parent(
        parent, path=module_path, nodeid=f"{FOLDER}/{module_path.name}"
    )
    return module


@pytest.fixture(scope="session")
def cplife_adapter(pytestconfig: pytest.Config) -> type[LifecycleAdapter]:
    """The adapter class that ``--cplife-adapter`` or the ini key ``cplife_adapter`` names."""
    options = resolve(pytestconfig)
    if options is None:
        pytest.fail("cplife_adapter needs --cplife-adapter=MOD:ATTR or its ini twin", pytrace=False)
    from pytest_cplife.loading import AdapterProblem, load_adapter

    try:
        return load_adapter(options.reference, options.base)
    except AdapterProblem as problem:
        pytest.fail(str(problem), pytrace=False)


@pytest.fixture(scope="session")
def cplife_world(pytestconfig: pytest.Config) -> Callable[..., World]:
    """Live ranks by their number: ``cplife_world(4).run(fn, *args)`` calls ``fn(rank, *args)``.

    The result is the list of the ranks' results; a failure on any rank raises
    :class:`pytest_cplife.launchers.base.WorldFailure`. See
    :meth:`pytest_cplife.launchers.base.Launcher.world` for the other arguments.
    """
    from pytest_cplife.spmd.worlds import worlds_of

    return worlds_of(pytestconfig).world


@pytest.fixture
def cplife_mesh(request: pytest.FixtureRequest) -> MeshOnRanks:
    """The ``DeviceMesh`` of the marker ``cplife``, in the body of a test that has it."""
    from pytest_cplife.spmd.hooks import marked
    from pytest_cplife.spmd.parcel import MeshOnRanks

    asked = marked(request.node)
    if asked is None:
        pytest.fail('cplife_mesh needs @pytest.mark.cplife(mesh="dp=2,cp=2")', pytrace=False)
    return MeshOnRanks(asked.spec)
