"""``--cplife-replay``: a run of pytest that tries the one example of a replay file again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cplife.launchers.folders import PrivateFolder
from pytest_cplife.options import ReplayOptions

if TYPE_CHECKING:
    from pytest_cplife.fuzz.replay import Replay


class StillFails(Exception):
    """The example fails as it did, or otherwise; the text is the whole message for the user."""


def start_replay(config: pytest.Config, options: ReplayOptions) -> None:
    """Make the replay file all that this run collects.

    Raises:
        pytest.UsageError: the file cannot be used, or other tests were asked for as well.
    """
    from pytest_cplife.fuzz.replay import read_replay

    told = f"--cplife-replay={options.file}"
    try:
        replay = read_replay(options.file)
    except OSError as error:
        raise pytest.UsageError(f"{told}: {error.strerror}") from None
    except ValueError as error:
        raise pytest.UsageError(f"{told}: {error}; a failed FUZZ rule names its file") from None
    explicit = config.args_source is pytest.Config.ArgsSource.ARGS
    if explicit and config.args != [str(options.file)]:
        raise pytest.UsageError(f"{told} tries one example; leave out {' '.join(config.args)}")
    config.args = [str(options.file)]
    config.args_source = pytest.Config.ArgsSource.ARGS
    config.pluginmanager.register(ReplayHooks(options, replay), "cplife-replay")


class ReplayHooks:
    """The hooks of such a run."""

    def __init__(self, options: ReplayOptions, replay: Replay) -> None:
        self.options = options
        self.replay = replay
        self._failed = False

    @property
    def adapter(self) -> str:
        return self.options.adapter or self.replay.adapter

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> ReplayFile | None:
        if file_path != self.options.file.resolve() and file_path != self.options.file:
            return None
        made: ReplayFile = ReplayFile.from_parent(parent, path=file_path, hooks=self)
        return made

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("cplife: replay")
        terminalreporter.write_line(f"suite {self.replay.suite!r}, adapter {self.adapter}")
        for line in self.replay.shown:
            terminalreporter.write_line(f"    {line}")
        outcome = "it fails" if self._failed else "nothing is wrong with it"
        terminalreporter.write_line(outcome)


class ReplayFile(pytest.File):
    """A replay file, which holds one test."""

    def __init__(self, *, hooks: ReplayHooks, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hooks = hooks

    def collect(self) -> Iterator[pytest.Item]:
        yield ReplayItem.from_parent(self, name=self.hooks.replay.suite, hooks=self.hooks)


class ReplayItem(pytest.Item):
    """The example, tried again."""

    def __init__(self, *, hooks: ReplayHooks, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hooks = hooks

    def runtest(self) -> None:
        from pytest_cplife.fuzz.replay import BadExample, explain, run_replay
        from pytest_cplife.fuzz.stage import FuzzStage
        from pytest_cplife.launchers import make_launcher
        from pytest_cplife.loading import AdapterProblem, load_adapter

        replay, ranks = self.hooks.replay, self.hooks.options.ranks
        folder = PrivateFolder()
        launcher = make_launcher(
            ranks.launcher, device=ranks.device, backend=ranks.backend, timeout=ranks.timeout
        )
        try:
            load_adapter(self.hooks.adapter)  # told here rather than by every rank
            stage = FuzzStage(self.hooks.adapter, launcher, folder.path, (), timeout=ranks.timeout)
            found = run_replay(replay, stage)
        except AdapterProblem as problem:
            raise StillFails(
                f"{problem}\n--cplife-adapter=MOD:ATTR says which adapter to try"
            ) from None
        except BadExample as problem:
            raise StillFails(f"the example cannot be read: {problem}") from None
        finally:
            launcher.close()
            folder.remove()
        if found.violations:
            raise StillFails(explain(replay, found))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, StillFails):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.name
