"""A session: one adapter, its settings, its runs, and the verdicts on them."""

from __future__ import annotations

import platform
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_cplife.blame import Find, blame, in_light_of, told_before
from pytest_cplife.evidence.run import RunEvidence, Unanswered
from pytest_cplife.judging import apply, check_needs, declared_by, told_by_simpler
from pytest_cplife.launchers import make_launcher
from pytest_cplife.launchers.base import Launcher
from pytest_cplife.loading import check_adapter, load_adapter
from pytest_cplife.mesh import MeshSpec, parse_meshes
from pytest_cplife.rules.case import Case, Declared, Noise, NotCovered
from pytest_cplife.rules.model import Outcome, Rule, Verdict, Violation
from pytest_cplife.rules.noise import larger, measure_noise, measure_rounding
from pytest_cplife.rules.own_noise import AFRESH, drawn_afresh
from pytest_cplife.rules.registry import get_rule
from pytest_cplife.scenarios.golden import CannotRecord, record
from pytest_cplife.scenarios.runner import Runner
from pytest_cplife.scenarios.table import RUNS
from pytest_cplife.settings import Settings
from pytest_cplife.suite import MESHLESS_GROUPS

if TYPE_CHECKING:
    from pytest_cplife.fuzz.evidence import Fuzzer


class Session:
    """Judges rules on meshes; makes the runs that they need when first asked.

    Usable without pytest::

        with Session(Settings(adapter="mymod:Adapter", workdir=folder)) as session:
            verdict = session.judge(get_rule("GO-02"), MeshSpec.parse("cp=2"))
    """

    def __init__(self, settings: Settings, launcher: Launcher | None = None) -> None:
        """
        Args:
            launcher: live ranks of the caller's, who ends them; by default they are the
                session's own.
        """
        self.settings = settings
        self._lent = launcher
        self._declared: Declared | None = None
        self._runner: Runner | None = None
        self._launcher: Launcher | None = launcher
        self._fuzzer: Fuzzer | None = None
        self._meshes: tuple[MeshSpec, ...] = ()
        self._told: dict[tuple[str, MeshSpec], tuple[Violation, ...]] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def declared(self) -> Declared:
        """What the adapter's class says; its `problems` are all that is wrong with it."""
        if self._declared is None:
            problems = check_adapter(self.settings.adapter)
            if problems:
                self._declared = Declared(problems=problems)
            else:
                cls = load_adapter(self.settings.adapter)
                self._declared = declared_by(cls)
                self._meshes = self.settings.meshes or parse_meshes(cls.meshes)
        return self._declared

    def judge(self, rule: Rule, spec: MeshSpec | None) -> Verdict:
        """The verdict on `rule` on the mesh `spec`; a rule of `MESHLESS_GROUPS` has none."""
        start = time.perf_counter()
        verdict = self._judge(rule, None if rule.group in MESHLESS_GROUPS else spec)
        return replace(verdict, seconds=time.perf_counter() - start)

    def environment(self) -> dict[str, str]:
        """Versions and places that a report needs to be understood later."""
        import numpy
        import torch

        from pytest_cplife import __version__

        return {
            "pytest-cplife": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": numpy.__version__,
            "platform": platform.system(),
            "launcher": self.settings.launcher,
            "device": self.settings.device,
        }

    def record_golden(self, folder: Path) -> tuple[Path, bool]:
        """Keep the trainer's file as a golden archive; say where, and whether it is a new one.

        The smallest mesh saves it: plain checkpoints fit all meshes, and each loads every archive.

        Raises:
            CannotRecord: there is no sound file.
        """
        if self.declared.problems:
            raise CannotRecord("the adapter cannot be used, as ADAPTER-01 says")
        limit = self.settings.max_world_size
        spec = min(self._meshes, key=lambda mesh: mesh.world_size)
        if limit is not None and spec.world_size > limit:
            raise CannotRecord(f"{spec} needs {spec.world_size} ranks, and there may be {limit}")
        saving, files = self._run("saving", spec), self._run("files", spec)
        assert self._runner is not None
        adapter = load_adapter(self.settings.adapter)
        source = self._runner.output("saving", spec)
        return record(
            folder, source, adapter, self.settings.adapter, saving, files, self.settings.seed
        )

    def close(self) -> None:
        """End every process that the session started."""
        if self._launcher is not None and self._lent is None:
            self._launcher.close()
        self._launcher, self._runner, self._fuzzer = self._lent, None, None

    def _judge(self, rule: Rule, spec: MeshSpec | None) -> Verdict:
        mesh = "" if spec is None else str(spec)
        declared = self.declared
        if rule.runs and declared.problems:
            return Verdict(rule.id, mesh, Outcome.BLOCKED, "blocked by ADAPTER-01")
        if rule.group == "FUZZ":
            return self._judge_fuzz(rule)
        if spec is None and rule.runs:
            # One mesh is enough for what is asked once, and the smallest is the cheapest.
            spec = min(self._possible_meshes(), key=lambda one: one.world_size, default=None)
            if spec is None:
                reason = f"every mesh needs more than {self.settings.max_world_size} ranks"
                return Verdict(rule.id, mesh, Outcome.NOT_COVERED, reason)
        partner = self._partner(spec)
        case = self._case(rule, spec, partner)
        teller = told_before(case, self._finder(case))
        if teller and teller != rule.id:
            return Verdict(rule.id, mesh, Outcome.BLOCKED, f"blocked by {teller}")
        try:
            offered = self._capabilities(case) if rule.needs else set()
            check_needs(rule, offered)
            verdict = apply(rule, mesh, case)
            if verdict.violations and rule.budgeted:
                noise = self._noise(rule, spec)
                if noise.by_subject:
                    verdict = apply(rule, mesh, replace(case, noise=noise))
            if verdict.violations and rule.budgeted and drawn_afresh(case):
                raise NotCovered(AFRESH)
            return self._in_light_of_others(rule, case, verdict)
        except NotCovered as reason:
            return Verdict(rule.id, mesh, Outcome.NOT_COVERED, str(reason))
        except Unanswered as missing:
            return blame(rule, mesh, case, missing, self._finder(case))

    def _judge_fuzz(self, rule: Rule) -> Verdict:
        """The same for a rule whose runs are searches over all meshes."""
        if self.settings.profile == "off":
            return Verdict(rule.id, "", Outcome.NOT_RUN, "the profile of fuzzing is off")
        try:
            # All that these rules need is the adapter's: nothing has to run to be told.
            check_needs(rule, self.declared.capabilities)
            fuzzer = self._open_fuzzer()
        except NotCovered as reason:
            return Verdict(rule.id, "", Outcome.NOT_COVERED, str(reason))
        case = Case(None, self.declared, {name: fuzzer.run(name) for name in rule.runs})
        verdict = apply(rule, "", case)
        teller = told_by_simpler(verdict, self._possible_meshes(), self._run)
        if teller:
            return Verdict(rule.id, "", Outcome.BLOCKED, f"blocked by {teller}")
        verdict = self._in_light_of_others(rule, case, verdict)
        kept = [path for run in case.runs.values() for path in run.fact("replay")]
        return replace(verdict, replay=next(filter(None, kept), ""))

    def _in_light_of_others(self, rule: Rule, case: Case, verdict: Verdict) -> Verdict:
        """The verdict, when what the rules before it have found on the same mesh is known."""
        if not verdict.violations:
            return verdict
        meshes = self._possible_meshes() if case.spec is None else (case.spec,)
        told = {id: self._found(id, meshes) for id in rule.presumes}
        return in_light_of(rule, case, verdict, {id: found for id, found in told.items() if found})

    def _found(self, id: str, meshes: Collection[MeshSpec]) -> list[Violation]:
        """What the rule `id` finds on any of `meshes`."""
        for spec in meshes:
            if (id, spec) not in self._told:
                self._told[id, spec] = self._judge(get_rule(id), spec).violations
        return [one for spec in meshes for one in self._told[id, spec]]

    def _open_fuzzer(self) -> Fuzzer:
        if self._fuzzer is None:
            from pytest_cplife.fuzz.evidence import Fuzzer
            from pytest_cplife.fuzz.profiles import profile_of

            limit, meshes = self.settings.max_world_size, self._possible_meshes()
            if not meshes:
                raise NotCovered(f"every mesh needs more than {limit} ranks")
            profile = profile_of(self.settings)
            self._fuzzer = Fuzzer(self.settings, meshes, self._open_launcher(), profile)
        return self._fuzzer

    def _case(self, rule: Rule, spec: MeshSpec | None, partner: MeshSpec | None) -> Case:
        runs: dict[str, RunEvidence] = {}
        crosses = partner is not None and any(RUNS[name].partner for name in rule.runs)
        for name in rule.runs:
            kind = RUNS[name]
            if not kind.partner:
                runs[name] = self._run(name, spec)
                if crosses and not kind.per_session:
                    # What comes from the partner is held against the partner's own run.
                    runs[f"{name} of partner"] = self._run(name, partner)
            elif partner is not None:
                runs[name] = self._run(name, spec, partner)
                if RUNS[kind.after].partner:
                    # It comes back to this mesh, by way of what the partner has made of it.
                    runs[f"{kind.after} of partner"] = self._run(kind.after, partner, spec)
        return Case(spec, self.declared, runs, partner=partner)

    def _finder(self, case: Case) -> Find:
        """Gives runs on the two meshes of `case`, each of which reads from the other."""

        def find(name: str, spec: MeshSpec | None) -> RunEvidence:
            return self._run(name, spec, case.spec if spec == case.partner else case.partner)

        return find

    def _run(
        self, name: str, spec: MeshSpec | None, partner: MeshSpec | None = None
    ) -> RunEvidence:
        if self._runner is None:
            adapter = load_adapter(self.settings.adapter)
            self._runner = Runner(self.settings, adapter, self._open_launcher())
        return self._runner.run(name, spec, partner)

    def _open_launcher(self) -> Launcher:
        if self._launcher is None:
            settings = self.settings
            self._launcher = make_launcher(
                settings.launcher,
                device=settings.device,
                backend=settings.backend,
                timeout=settings.timeout,
            )
        return self._launcher

    def _possible_meshes(self) -> tuple[MeshSpec, ...]:
        limit = self.settings.max_world_size
        return tuple(m for m in self._meshes if limit is None or m.world_size <= limit)

    def _partner(self, spec: MeshSpec | None) -> MeshSpec | None:
        """The mesh before `spec` in the adapter's list, the last one for the first."""
        meshes = self._possible_meshes()
        if spec not in meshes or len(meshes) < 2:
            return None
        return meshes[meshes.index(spec) - 1]

    def _noise(self, rule: Rule, spec: MeshSpec | None) -> Noise:
        """What `rule` has to allow for; rounding counts where a run that was stopped is judged."""
        run = self._run("uninterrupted", spec)
        noise = measure_noise(run, self._run("twin", spec))
        if self.declared.bitwise_resume or not any(RUNS[name].after for name in rule.runs):
            return noise
        return larger(noise, measure_rounding(run, self._run("nudged", spec)))

    def _capabilities(self, case: Case) -> set[str]:
        """What adapter and run offer.

        Raises:
            Unanswered: no run got as far as to tell.
        """
        offered, told = set(case.declared.capabilities), False
        for run in case.runs.values():
            for journal in run.ranks:
                told = told or "capabilities" in journal.facts
                offered.update(journal.facts.get("capabilities", ()))
        if case.runs and not told:
            raise Unanswered(next(iter(case.runs)), "capabilities")
        return offered
