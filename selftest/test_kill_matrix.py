"""Every rule is proved: something breaks it, and nothing healthy does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from pytest_cplife.selftest.bench import TIMEOUT, Bench
from pytest_cplife.selftest.catalogue import FAULTS
from pytest_cplife.selftest.healthy import HEALTHY
from pytest_cplife.selftest.planting import Fault

from pytest_cplife.loading import load_adapter
from pytest_cplife.mesh import MeshSpec, parse_meshes
from pytest_cplife.options import resolve_ranks
from pytest_cplife.rules.model import Outcome
from pytest_cplife.rules.registry import all_rules, get_rule
from pytest_cplife.session import Session
from pytest_cplife.suite import MESHLESS_GROUPS


@pytest.fixture(scope="module")
def bench(pytestconfig: pytest.Config) -> Iterator[Bench]:
    asked = resolve_ranks(pytestconfig)
    timeout = max(asked.timeout, TIMEOUT)
    with Bench(asked.launcher, asked.device, asked.backend, timeout) as made:
        yield made


def test_every_rule_has_a_witness() -> None:
    """A rule that nothing breaks may as well not be there."""
    assert {rule.id for rule in all_rules()} - {fault.rule for fault in FAULTS} == set()


# Those for FUZZ rules are judged by another test, which also looks at the examples that were found.
SEEN = [fault for fault in FAULTS if not fault.rule.startswith("FUZZ-")]


@pytest.mark.parametrize("fault", SEEN, ids=lambda fault: f"{fault.rule}-{fault.name}")
def test_fault_is_found(bench: Bench, fault: Fault) -> None:
    """The rule that has to find it fails, and names what is wrong."""
    with bench.session(fault.adapter_ref, fault.earlier) as judge:
        verdict = judge.judge(get_rule(fault.rule), fault.spec)
    assert verdict.outcome is Outcome.FAILED, f"{verdict.outcome.value} {verdict.reason}"
    assert fault.subject in [violation.subject for violation in verdict.violations]
    assert fault.likely in verdict.reason


def alarms(judge: Session, specs: Sequence[MeshSpec]) -> Iterator[str]:
    """The rules that a healthy trainer trips, or that are blocked without one."""
    for rule in all_rules():
        for spec in (None,) if rule.group in MESHLESS_GROUPS else specs:
            verdict = judge.judge(rule, spec)
            if verdict.outcome not in (Outcome.PASSED, Outcome.NOT_COVERED):
                yield f"{rule.id} on {spec}: {verdict.outcome.value} {verdict.reason}"
                for violation in verdict.violations[:3]:
                    yield f"  {violation.subject}: {violation.observed}\n{violation.detail}"


@pytest.mark.parametrize("ref", HEALTHY)
def test_healthy_trainer_on_two_ranks(bench: Bench, ref: str) -> None:
    """No false alarm on the last of its meshes that needs no more: the quick look."""
    specs = parse_meshes(load_adapter(ref).meshes)
    small = [spec for spec in specs if spec.world_size <= 2]
    with bench.session(ref) as judge:
        assert not judge.declared.problems
        found = [line for line in alarms(judge, small[-1:]) if not line.startswith("FUZZ-")]
    assert small and not found, "\n".join(found)


@pytest.mark.parametrize("ref", HEALTHY)
def test_healthy_trainer_trips_no_rule(bench: Bench, ref: str) -> None:
    """No false alarm on any of its meshes; fuzzing has the time that it has for a user.

    One session for all meshes, as a user has it: what one of them needs of another is there.
    """
    with bench.session(ref, profile="quick") as judge:
        assert not judge.declared.problems
        found = list(alarms(judge, parse_meshes(load_adapter(ref).meshes)))
    assert not found, "\n".join(found)
