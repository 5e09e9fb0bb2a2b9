"""Which tests there are, under which ids, and how pytest's own options select among them."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from pytest_cplife.collection import suite_files, suite_folder
from pytest_cplife.rules.registry import all_rules
from pytest_cplife.scheduling import scope_of
from tests.plugin.conftest import BROKEN, MESHES, TOTAL, Run, ids_of


def test_an_adapter_alone_runs_just_the_suite(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_own(): pass")
    ids = ids_of(run("--collect-only", "-q"))
    assert len(ids) == TOTAL
    assert all(id.startswith("conformance/test_") for id in ids)
    assert BROKEN in ids
    assert ids[0].startswith("conformance/test_adapter.py::test_adapter_01_")


def test_explicit_paths_are_respected(run: Run, pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile("def test_own(): pass")
    result = run(str(own))
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("cplife *")
    result.stdout.no_fnmatch_line("*= cplife*")


def test_the_flag_adds_the_suite(run: Run, pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile("def test_own(): pass")
    ids = ids_of(run(str(own), "--cplife", "--collect-only", "-q"))
    assert len(ids) == TOTAL + 1
    assert ids[0].endswith("::test_own")


def test_the_flag_adds_the_suite_to_an_ini_adapter(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ncplife_adapter = mymod:Adapter\n")
    pytester.makepyfile("def test_own(): pass")
    assert len(ids_of(run("--cplife", "--collect-only", "-q", adapter=None))) == TOTAL + 1


def test_testpaths_and_patterns_of_the_user_do_not_matter(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.mkdir("sub").joinpath("check_own.py").write_text("def test_own(): pass\n")
    pytester.makeini("[pytest]\ntestpaths = sub\npython_files = check_*.py\nnorecursedirs = *\n")
    result = run("--collect-only", "-q")
    assert len(ids_of(result)) == TOTAL


def test_ids_are_the_same_from_any_root(run: Run, pytester: pytest.Pytester) -> None:
    here = ids_of(run("--collect-only", "-q"))
    elsewhere = ids_of(run("--collect-only", "-q", "--rootdir=/"))
    assert here == elsewhere


def test_a_pasted_id_selects_its_test(run: Run) -> None:
    result = run(BROKEN)
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize(
    "arguments", [["conformance"], ["--pyargs", "pytest_cplife.conformance"], [str(suite_folder())]]
)
def test_the_suite_can_be_named(run: Run, arguments: list[str]) -> None:
    result = run(*arguments, "--collect-only")
    result.stdout.fnmatch_lines(["cplife * mymod:Adapter on *", f"collected {TOTAL} items"])


def test_a_module_of_the_suite_without_an_adapter_says_what_is_missing(run: Run) -> None:
    result = run(str(suite_files()[0]), adapter=None)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["conformance/test_adapter.py judges a trainer: give *"])


def test_deselecting_by_id(run: Run) -> None:
    result = run("--deselect", BROKEN, "--deselect", "conformance/test_sched.py")
    result.assert_outcomes(passed=TOTAL - 4, deselected=4)


def test_selecting_by_keyword(run: Run) -> None:
    run("-k", "GO-02").assert_outcomes(passed=2, failed=1, deselected=TOTAL - 3)
    run("-k", "SAVE and dp1").assert_outcomes(passed=1, deselected=TOTAL - 1)


def test_last_failed_runs_what_failed(run: Run) -> None:
    run().assert_outcomes(passed=TOTAL - 4, failed=1, skipped=3)
    run("--lf").assert_outcomes(failed=1, deselected=TOTAL - 1)


def test_last_failed_follows_a_run_with_workers(run: Run) -> None:
    run("-n2").assert_outcomes(passed=TOTAL - 4, failed=1, skipped=3)
    run("--lf").assert_outcomes(failed=1, deselected=TOTAL - 1)


def test_stepwise_stops_and_goes_on(run: Run) -> None:
    run("--sw").assert_outcomes(passed=12, failed=1, skipped=3)
    run("--sw").assert_outcomes(failed=1, deselected=15)


def test_junit_names_are_stable_and_properties_small(run: Run, pytester: pytest.Pytester) -> None:
    run("--junitxml=j.xml", "-n2")
    cases = list(ElementTree.parse(pytester.path / "j.xml").iter("testcase"))
    assert len(cases) == TOTAL
    assert {case.get("classname") for case in cases} >= {"conformance.test_go"}
    broken = next(case for case in cases if case.find("failure") is not None)
    assert broken.get("name") == BROKEN.partition("::")[2]
    properties = {p.get("name"): p.get("value") for p in broken.iter("property")}
    assert properties == {
        "cplife_rule": "GO-02",
        "cplife_mesh": "dp2-cp2",
        "cplife_outcome": "failed",
    }


def test_junit_properties_can_be_left_out(run: Run, pytester: pytest.Pytester) -> None:
    run("--junitxml=j.xml", "-o", "cplife_junit_properties=false")
    assert not list(ElementTree.parse(pytester.path / "j.xml").iter("property"))


def test_workers_see_the_same_ids_and_one_mesh_stays_on_one_worker(run: Run) -> None:
    result = run("-n2", "-v")
    workers: dict[str, set[str]] = {}
    for line in result.outlines:
        words = line.split()
        if len(words) > 3 and words[0] in ("[gw0]", "[gw1]") and "[" in words[-1]:
            assert words[-1].startswith("conformance/test_")
            workers.setdefault(words[-1].partition("[")[2], set()).add(words[0])
    assert set(workers) == {f"{mesh}]" for mesh in MESHES}
    assert all(len(names) == 1 for names in workers.values())


def test_a_distribution_that_the_user_chose_is_left_alone(run: Run) -> None:
    result = run("-n2", "--dist=loadgroup", "-v", "-k", "GRAD-01")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["scheduling tests via LoadGroupScheduling"])


def test_the_order_is_that_of_the_lifecycle(run: Run) -> None:
    files = [f"conformance/test_{group}.py" for group in ("go", "save", "adapter")]
    ids = ids_of(run(*files, "--collect-only", "-q"))
    groups = list(dict.fromkeys(id.partition("::")[0] for id in ids))
    assert groups == list(reversed(files))


def test_a_skip_is_reported_at_its_module(run: Run) -> None:
    result = run("-rs", "-k", "SCHED-01")
    result.stdout.fnmatch_lines(["SKIPPED [[]3] conformance/test_sched.py:1: not covered: *"])


def test_a_package_of_the_same_name_is_left_alone(run: Run, pytester: pytest.Pytester) -> None:
    pytester.mkpydir("conformance").joinpath("own.py").write_text("VALUE = 3\n")
    own = pytester.makepyfile(
        """
        from conformance.own import VALUE

        def test_own():
            assert VALUE == 3
        """
    )
    run(str(own), "--cplife", "-k", "own or GRAD-01").assert_outcomes(passed=4, deselected=16)


@pytest.mark.parametrize(
    ("id", "scope"),
    [
        (BROKEN, "mesh dp2-cp2"),
        ("conformance/test_adapter.py::test_a", "conformance/test_adapter.py::test_a"),
        ("tests/test_own.py::test_own[dp2-cp2]", "tests/test_own.py::test_own[dp2-cp2]"),
    ],
)
def test_scopes(id: str, scope: str) -> None:
    assert scope_of(id) == scope


def test_no_rule_is_selected_by_the_name_of_another() -> None:
    rules = all_rules()
    for rule in rules:
        # pytest's -k looks for a part of any of these, without regard to case.
        selected = [
            other.id
            for other in rules
            if any(rule.id.lower() in name.lower() for name in (other.id, other.test_name))
        ]
        assert selected == [rule.id]
    names = [rule.test_name for rule in rules]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)


def test_every_group_with_rules_has_its_module() -> None:
    groups = {rule.group.lower() for rule in all_rules()}
    assert groups == {path.stem.removeprefix("test_") for path in suite_files()}


def test_a_conformance_module_is_made_of_documented_functions() -> None:
    from pytest_cplife.conformance import test_go

    for rule in all_rules():
        if rule.group == "GO":
            test = getattr(test_go, rule.test_name)
            assert test.__doc__ == rule.statement
