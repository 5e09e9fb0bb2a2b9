"""The pytest plugin: hooks and fixtures, thin, and dormant until an adapter is named.

pytest imports this module in every run that has the package installed, so it imports
nothing but the standard library, pytest and modules that are as light; the hooks that
do something live in :class:`pytest_cplife.hooks.SuiteHooks`, which is registered only
where an adapter is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_cplife.options import add_options, resolve

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_cplife.adapter import LifecycleAdapter

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
    options = resolve(config)
    if options is not None:
        from pytest_cplife.hooks import start_suite

        start_suite(config, options)


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    """Give the suite's modules their stable ids, however they came to be collected."""
    # The cheap half of the question first: this is asked about every module of every run.
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
