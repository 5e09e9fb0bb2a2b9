"""The hooks of a run that has an adapter."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_cplife import __version__
from pytest_cplife.collection import (
    FOLDER,
    PACKAGE,
    RUNNING,
    RuleItem,
    attach_verdict,
    order_items,
    read_verdict,
    suite_files,
    suite_folder,
)
from pytest_cplife.expected import Expectations, read_expected
from pytest_cplife.options import Options
from pytest_cplife.report.results import Plan, Results
from pytest_cplife.rules.model import Verdict
from pytest_cplife.running import Running

_WORKER_OUTPUT = "cplife_plan"
_SELECTING = {"keyword": "-k", "markexpr": "-m", "deselect": "--deselect", "lf": "--lf"}


def start_suite(config: pytest.Config, options: Options) -> None:
    """Set up the run in this process, which may be a worker of xdist's."""
    expectations = Expectations()
    if options.expected is not None:
        expectations = read_expected(options.expected)
        from pytest_cplife.rules.registry import all_rules

        expectations.check_rules([rule.id for rule in all_rules()], options.expected.name)
    if options.certify:
        for name, flag in _SELECTING.items():
            if config.getoption(name, None):
                raise pytest.UsageError(f"--cplife-certify runs every rule; leave out {flag}")
    # A worker of xdist's starts from the arguments the user gave, and settles them as here.
    requested = _set_arguments(config, options)
    config.stash[RUNNING] = running = Running(options, expectations, _kept_folder(config))
    config.pluginmanager.register(SuiteHooks(config, running, requested), "cplife-suite")


def _kept_folder(config: pytest.Config) -> Path:
    """Where examples that failed outlive the run: in pytest's cache, unless that is off."""
    if config.pluginmanager.hasplugin("cacheprovider") and config.cache is not None:
        return config.cache.mkdir("cplife")
    return Path(tempfile.gettempdir()) / "cplife-kept"


def _set_arguments(config: pytest.Config, options: Options) -> bool:
    """Decide what pytest collects; say whether the suite is among it."""
    files = [str(path) for path in suite_files()]
    explicit = config.args_source is pytest.Config.ArgsSource.ARGS
    if options.suite:
        config.args = [*map(partial(_resolve, config), config.args), *files]
    elif options.given_by_option and not explicit:
        config.args = files
        # The header would go on to name the user's testpaths otherwise.
        config.args_source = pytest.Config.ArgsSource.ARGS
    else:
        config.args = [_resolve(config, argument) for argument in config.args]
        return any(_is_ours(config, argument) for argument in config.args)
    return True


def _is_ours(config: pytest.Config, argument: str) -> bool:
    """Whether the argument names the suite, as a path or as a package (``--pyargs``)."""
    place = argument.partition("::")[0]
    path = (config.invocation_params.dir / place).resolve()
    return place.startswith(PACKAGE) or suite_folder().resolve() in (path, *path.parents)


def _resolve(config: pytest.Config, argument: str) -> str:
    """A pasted id names no file of the user's; it means the installed module."""
    path, colons, names = argument.partition("::")
    if not path.startswith(FOLDER) or (config.invocation_params.dir / path).exists():
        return argument
    installed = suite_folder() / path.removeprefix(FOLDER).lstrip("/")
    return f"{installed}{colons}{names}" if installed.exists() else argument


class SuiteHooks:
    """What happens to the suite's tests in this process."""

    def __init__(self, config: pytest.Config, running: Running, requested: bool) -> None:
        self._config = config
        self._running = running
        self._requested = requested
        self._is_worker = hasattr(config, "workerinput")
        self._verdicts: list[Verdict] = []
        self._problems: list[str] = []
        self._written: list[str] = []
        self._golden = ""

    def pytest_report_header(self) -> list[str]:
        if not self._requested:
            return []
        options = self._running.options
        meshes = ", ".join(map(str, options.meshes)) or "the adapter's meshes"
        return [f"cplife {__version__}: {options.adapter} on {meshes}"]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Plan before anything is collected, so that what is wrong with the request shows once.

        Also where workers collect: a run whose workers all die has still its denominator.
        """
        if self._requested:
            self._running.begin()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        order_items(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._running.select(
            [(item.rule.id, item.mesh) for item in session.items if isinstance(item, RuleItem)]
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if isinstance(item, RuleItem):
            attach_verdict(item, call, report)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        verdict = None if self._is_worker else read_verdict(report)
        if verdict is not None:
            self._verdicts.append(verdict)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from pytest_cplife.plugin import DIST_CHOSEN
        from pytest_cplife.scheduling import MeshScheduling

        return None if config.stash.get(DIST_CHOSEN, False) else MeshScheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended; it knows what was selected, and where it ran."""
        text = getattr(node, "workeroutput", {}).get(_WORKER_OUTPUT)
        if text is not None:
            self._running.merge(Plan.from_json(json.loads(text)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        plan = self._running.plan
        if self._is_worker:
            if plan is not None:
                output: dict[str, Any] = self._config.workeroutput  # type: ignore[attr-defined]
                output[_WORKER_OUTPUT] = json.dumps(plan.to_json())
            return
        results = self._results()
        if results is None or self._config.option.collectonly:
            return
        options = self._running.options
        self._problems = results.problems(
            self._running.expectations, narrowed=bool(options.meshes), certify=options.certify
        )
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self._record_golden(results)
        self._write_reports(results)
        if self._problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        results = self._results()
        if self._is_worker or results is None or self._config.option.collectonly:
            return
        from pytest_cplife.report.terminal import summary_lines

        terminalreporter.section(f"cplife: {self._running.options.adapter}")
        for line in summary_lines(results):
            terminalreporter.write_line(line)
        for problem in self._problems:
            terminalreporter.write_line(f"problem: {problem}", red=True)
        if self._golden:
            terminalreporter.write_line(f"golden archive: {self._golden}")
        for path in self._written:
            terminalreporter.write_line(f"report: {path}")

    def pytest_unconfigure(self) -> None:
        self._running.close()

    def _results(self) -> Results | None:
        plan = self._running.plan
        return None if plan is None else Results(plan, self._verdicts)

    def _record_golden(self, results: Results) -> None:
        """After the last test, where only the process that reports does anything."""
        folder = self._running.options.record_golden
        if folder is None:
            return
        from pytest_cplife.scenarios.golden import CannotRecord

        try:
            self._golden = self._running.record_golden(folder, results)
        except (CannotRecord, OSError) as why:
            self._problems.append(f"no golden archive was recorded: {why}")

    def _write_reports(self, results: Results) -> None:
        if not self._running.options.reports:
            return
        from pytest_cplife.report.document import build_document, write_report
        from pytest_cplife.rules.registry import all_rules

        options = self._running.options
        shown = ("steps", "launcher", "device", "backend", "timeout", "strict", "level", "require")
        document = build_document(
            results,
            all_rules(),
            options={name: getattr(options, name) for name in shown},
            problems=self._problems,
        )
        for path in options.reports:
            try:
                write_report(path, document)
            except OSError as error:
                self._problems.append(f"cannot write {path}: {error.strerror}")
            else:
                self._written.append(str(path))
