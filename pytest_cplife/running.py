"""The run of the suite in one process: what is planned, who judges, what the user is told."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_cplife import __version__
from pytest_cplife.expected import Expectations
from pytest_cplife.launchers import most_ranks
from pytest_cplife.launchers.folders import PrivateFolder
from pytest_cplife.mesh import MeshSpec, parse_meshes
from pytest_cplife.options import Options
from pytest_cplife.policy import settle
from pytest_cplife.report.results import Key, Plan, Results
from pytest_cplife.rules.model import Outcome, Rule, Verdict
from pytest_cplife.suite import MESHLESS_GROUPS

if TYPE_CHECKING:
    from pytest_cplife.session import Session


class Running:
    """Made at the start of pytest, idle until the first conformance module is collected."""

    def __init__(
        self, options: Options, expectations: Expectations, kept: Path | None = None
    ) -> None:
        """
        Args:
            kept: a folder for what outlives the run: examples that failed.
        """
        self.options = options
        self.expectations = expectations
        self._kept = kept
        self.plan: Plan | None = None
        self._meshes: tuple[MeshSpec, ...] = ()
        self._session: Session | None = None
        self._workdir: PrivateFolder | None = None

    def begin(self) -> tuple[MeshSpec, ...]:
        """Import the adapter, plan the run, and return the meshes that it is over."""
        if self.plan is None:
            from pytest_cplife.rules.registry import all_rules

            rules = all_rules()
            self._check_require(rules)
            adapter, own = self._look_at_adapter()
            self._meshes = self._choose_meshes(own)
            self.plan = Plan(
                keys=[
                    (rule.id, mesh)
                    for rule in rules
                    for mesh in (("",) if rule.group in MESHLESS_GROUPS else map(str, self._meshes))
                ],
                meshes=[str(spec) for spec in self._meshes],
                adapter=adapter,
                environment={
                    "pytest-cplife": __version__,
                    "pytest": pytest.__version__,
                    "python": platform.python_version(),
                    "platform": platform.platform(terse=True),
                },
            )
        return self._meshes

    def select(self, keys: list[Key]) -> None:
        """Say what is left of the plan after deselection."""
        if self.plan is not None:
            self.plan.selected = keys

    def merge(self, other: Plan) -> None:
        """Take over what only a worker of xdist's can know of the same plan."""
        if self.plan is None:
            self.plan = other
        self.plan.selected = other.selected
        # Only a worker that judged something knows the whole environment.
        self.plan.environment.update(other.environment)

    def judge(self, rule: Rule, spec: MeshSpec | None) -> Verdict:
        """The verdict of the evidence alone."""
        limit, why = self._limit()
        if spec is not None and limit is not None and spec.world_size > limit:
            reason = f"{spec} needs {spec.world_size} ranks, {why}"
            return Verdict(rule.id, str(spec), Outcome.NOT_RUN, reason)
        started = time.perf_counter()
        verdict = self._open().judge(rule, spec)
        return replace(verdict, seconds=verdict.seconds or time.perf_counter() - started)

    def settle(self, rule: Rule, verdict: Verdict) -> Verdict:
        """The verdict after what the user said about strictness and expected failures."""
        return settle(
            verdict,
            rule,
            strict=self.options.strict,
            require=self.options.require,
            level=self.options.level,
            expectation=self.expectations.of(rule.id, verdict.mesh),
        )

    def message(self, rule: Rule, verdict: Verdict) -> str:
        from pytest_cplife.report.message import failure_message

        if verdict.replay:
            again = self.options.replay_command(verdict.replay)
        else:
            again = self.options.command(rule.id, verdict.mesh)
        return failure_message(rule, verdict, again)

    def record_golden(self, folder: Path, results: Results) -> str:
        """Add to the archives of `folder`; one line about it.

        Raises:
            CannotRecord: there is no checkpoint that would be worth keeping.
        """
        from pytest_cplife.scenarios.golden import CannotRecord

        wrong = [
            verdict.rule
            for verdict in results.verdicts()
            if verdict.rule.startswith("SAVE-") and verdict.outcome is Outcome.FAILED
        ]
        if wrong:
            raise CannotRecord(f"{wrong[0]} failed, and what is kept for years has to be right")
        path, new = self._open().record_golden(folder)
        return f"{path}, recorded" if new else f"{path} says the same; none was recorded"

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        if self._workdir is not None:
            self._workdir.remove()
        self._session = self._workdir = None

    def _open(self) -> Session:
        if self._session is None:
            from pytest_cplife.session import Session

            self._workdir = PrivateFolder()
            settings = self.options.settings(self._workdir.path, self._kept)
            limit, _ = self._limit()
            self._session = Session(replace(settings, max_world_size=limit))
            if self.plan is not None:
                self.plan.environment.update(self._session.environment())
        return self._session

    def _limit(self) -> tuple[int | None, str]:
        """How many ranks a mesh may need, by what the user says and what the launcher has."""
        asked = self.options.max_world_size
        options = self.options
        try:
            given = most_ranks(options.launcher, options.device, options.backend)
        except RuntimeError as error:
            raise pytest.UsageError(f"--cplife-device={options.device}: {error}") from None
        if given is not None and (asked is None or given[0] < asked):
            return given
        return asked, f"--cplife-max-world-size is {asked}"

    def _look_at_adapter(self) -> tuple[dict[str, str], tuple[MeshSpec, ...]]:
        """What the report says about the adapter, and its meshes.

        An adapter that cannot be used is the business of the rule about adapters; here it
        is only given the protocol's own meshes, so that the denominator stays what it is.
        """
        from pytest_cplife.adapter import LifecycleAdapter
        from pytest_cplife.loading import AdapterProblem, load_adapter
        from pytest_cplife.shape import sound_adapter

        about = {"reference": self.options.adapter}
        adapter = None
        try:
            cls = load_adapter(self.options.reference, self.options.base)
            about["class"] = f"{cls.__module__}.{cls.__qualname__}"
            adapter = sound_adapter(cls)
        except AdapterProblem:
            pass
        if adapter is None:
            return about, parse_meshes(LifecycleAdapter.meshes)
        about["framework"] = adapter.framework
        about["checkpoint_format"] = adapter.checkpoint_format
        return about, parse_meshes(adapter.meshes)

    def _choose_meshes(self, own: tuple[MeshSpec, ...]) -> tuple[MeshSpec, ...]:
        chosen = self.options.meshes or own
        if self.options.certify:
            limit, why = self._limit()
            left_out = [str(spec) for spec in own if spec not in chosen]
            left_out += [str(spec) for spec in own if limit and spec.world_size > limit]
            if left_out:
                raise pytest.UsageError(
                    f"--cplife-certify covers all of the adapter's meshes; {', '.join(left_out)} "
                    "would be left out by --cplife-mesh or --cplife-max-world-size"
                    + (f" ({why})" if limit else "")
                )
        return chosen

    def _check_require(self, rules: Iterable[Rule]) -> None:
        from pytest_cplife.adapter import ADAPTER_CAPABILITIES, RUN_CAPABILITIES

        known = {*ADAPTER_CAPABILITIES, *RUN_CAPABILITIES, *(n for r in rules for n in r.needs)}
        unknown = [name for name in self.options.require if name not in known]
        if unknown:
            raise pytest.UsageError(
                f"--cplife-require={','.join(unknown)}: accepted are {', '.join(sorted(known))}"
            )
