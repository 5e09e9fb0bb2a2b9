"""The conformance suite as pytest items, with the same ids wherever it is installed.

The modules of the suite lie in site-packages, in a checkout or anywhere else; pytest
would name their tests after that place. Here they are called ``conformance/test_GROUP.py``
always, so that ``--deselect``, ``--lf``, JUnit reports and what people write in issues
agree between machines.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_cplife.mesh import MeshSpec
from pytest_cplife.rules.model import GROUPS, Outcome, Rule, Verdict
from pytest_cplife.suite import MESHLESS_GROUPS

if TYPE_CHECKING:
    from pytest_cplife.running import Running

FOLDER = "conformance"
PACKAGE = f"pytest_cplife.{FOLDER}"
PROPERTY = "cplife"
"""The name under which a verdict travels in a report, as JSON."""

RUNNING: pytest.StashKey[Running] = pytest.StashKey()
VERDICT: pytest.StashKey[Verdict] = pytest.StashKey()


class RuleBroken(Exception):
    """A rule did not hold; the text is the whole message for the user."""


def suite_folder() -> Path:
    """Where the conformance modules lie."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise pytest.UsageError(f"{PACKAGE} is not installed")
    return Path(spec.origin).parent


def suite_files() -> list[Path]:
    """The conformance modules in the order of the lifecycle."""
    order = {f"test_{group.lower()}": position for position, group in enumerate(GROUPS)}
    files = suite_folder().glob("test_*.py")
    return sorted(files, key=lambda path: (order.get(path.stem, len(order)), path.stem))


class ConformanceModule(pytest.Module):
    """One module of the suite. Its tests are items of their own kind, without fixtures."""

    def _getobj(self) -> Any:
        # By its installed name: imported from its file it would be a top-level `conformance`.
        return importlib.import_module(f"{PACKAGE}.{self.path.stem}")

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        running = self.config.stash.get(RUNNING, None)
        if running is None:
            raise self.CollectError(
                f"{self.nodeid} judges a trainer: give --cplife-adapter=MOD:ATTR"
            )
        meshes = running.begin()
        for test in vars(self.obj).values():
            rule = getattr(test, "rule", None)
            if not isinstance(rule, Rule):
                continue
            for spec in (None,) if rule.group in MESHLESS_GROUPS else meshes:
                name = rule.test_name if spec is None else f"{rule.test_name}[{spec}]"
                # In full, so that pytest reads the mesh as a parameter: it compares parsed ids.
                nodeid = f"{self.nodeid}::{name}"
                yield RuleItem.from_parent(self, name=name, nodeid=nodeid, test=test, spec=spec)


class RuleItem(pytest.Item):
    """One rule on one mesh."""

    def __init__(
        self, *, test: Callable[..., Verdict], spec: MeshSpec | None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.obj = test
        self.rule: Rule = test.rule  # type: ignore[attr-defined]
        self.spec = spec
        self.extra_keyword_matches.update((self.rule.id, self.rule.group, self.mesh))
        if self.config.pluginmanager.hasplugin("xdist"):
            # Effective where the user chose --dist=loadgroup.
            self.add_marker(pytest.mark.xdist_group(f"cplife-{self.mesh}"))

    @property
    def mesh(self) -> str:
        return "" if self.spec is None else str(self.spec)

    def runtest(self) -> None:
        running = self.config.stash[RUNNING]
        verdict = running.settle(self.rule, self.obj(running.judge, self.spec))
        self.stash[VERDICT] = verdict
        match verdict.outcome:
            case Outcome.FAILED:
                raise RuleBroken(running.message(self.rule, verdict))
            case Outcome.EXPECTED:
                pytest.xfail(verdict.reason)
            case Outcome.ADVICE:
                self.add_report_section("call", "advice", running.message(self.rule, verdict))
                pytest.xfail(f"advice: {verdict.reason}")
            case Outcome.NOT_COVERED | Outcome.BLOCKED | Outcome.NOT_RUN:
                pytest.skip(f"{verdict.outcome.value}: {verdict.reason}")
            case Outcome.PASSED:
                pass

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, RuleBroken):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.config.rootpath / FOLDER / self.path.name, None, self.name


def order_items(items: list[pytest.Item]) -> None:
    """Put the suite's items in the order of the lifecycle; all others keep their places.

    The adapter comes first, because nothing else can be judged without it. Then rule by
    rule over the meshes: evidence is cached and worlds live on, so no order costs less.
    """
    order = {group: position for position, group in enumerate(GROUPS)}
    places = [place for place, item in enumerate(items) if isinstance(item, RuleItem)]
    ours = [item for item in items if isinstance(item, RuleItem)]
    ours.sort(key=lambda item: (order[item.rule.group], item.rule.id))
    for place, item in zip(places, ours, strict=True):
        items[place] = item


def attach_verdict(item: RuleItem, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Make the verdict part of the report, in which it reaches the process that reports."""
    if call.when != "call":
        return
    verdict = item.stash.get(VERDICT, None)
    if verdict is None:
        # The suite itself broke; the rule has to be accounted for all the same.
        verdict = Verdict(
            rule=item.rule.id,
            mesh=item.mesh,
            outcome=Outcome.FAILED,
            reason=f"could not be judged: {call.excinfo.exconly() if call.excinfo else 'unknown'}",
        )
    report.user_properties.append((PROPERTY, json.dumps(verdict.to_json())))
    if isinstance(report.longrepr, tuple):
        # A skip is reported at the line that raised it, which is never the user's.
        report.longrepr = (f"{FOLDER}/{item.path.name}", 1, report.longrepr[2])
    if item.config.getini("cplife_junit_properties"):
        item.user_properties += [
            ("cplife_rule", verdict.rule),
            ("cplife_mesh", verdict.mesh),
            ("cplife_outcome", verdict.outcome.value),
        ]


def read_verdict(report: pytest.TestReport) -> Verdict | None:
    """The verdict in `report`, wherever the test ran."""
    for name, value in report.user_properties:
        if name == PROPERTY:
            return Verdict.from_json(json.loads(str(value)))
    return None
