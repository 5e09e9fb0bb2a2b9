"""DCP on hand-made evidence: which files a sharded directory has, and which one an error names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_cplife.evidence.layout import ShardLayout
from tests.rules.builders import Lab, subjects, violations

FILES = {"__0_0.distcp": 40, "__1_0.distcp": 40}
WHOLE = ShardLayout(1, FILES, {})


def listed(lab: Lab, layout: ShardLayout) -> list[str]:
    return subjects("DCP-02", lab.case(lab.run("sharding", facts={"layout": [layout, layout]})))


def test_a_directory_with_its_files_and_no_others(lab: Lab) -> None:
    assert listed(lab, WHOLE) == []
    assert listed(lab, replace(WHOLE, files={})) == ["data files"]
    assert listed(lab, replace(WHOLE, metadata=2)) == [".metadata"]


def test_files_that_the_metadata_and_the_directory_do_not_share(lab: Lab) -> None:
    assert listed(lab, replace(WHOLE, strays=("__1_0.distcp",))) == ["__1_0.distcp"]
    assert listed(lab, replace(WHOLE, absent=("__2_0.distcp",))) == ["__2_0.distcp"]
    assert listed(lab, replace(WHOLE, unfinished=(".metadata.tmp",))) == [".metadata.tmp"]


def test_a_file_of_another_name_is_told_once(lab: Lab) -> None:
    files = {**FILES, "backup.distcp": 40}
    assert listed(lab, replace(WHOLE, files=files, strays=("backup.distcp",))) == ["backup.distcp"]


@pytest.mark.parametrize("damage", ["a missing rank file", "a truncated rank file"])
def test_an_error_that_names_the_file(lab: Lab, damage: str) -> None:
    def run(*outcomes: str) -> list[str]:
        facts = {
            key: values
            for name in ("a missing rank file", "a truncated rank file")
            for key, values in (
                (name, ["no __1_0.distcp"] * 2),
                (f"damaged {name}", ["__1_0.distcp"] * 2),
            )
        }
        found = violations("DCP-26", lab.case(lab.run("damaged", facts=facts | {damage: outcomes})))
        return [f"{each.subject} {each.moment}: {each.observed}" for each in found]

    assert run("no __1_0.distcp", "another rank has failed") == []
    assert run("another rank has failed", "no __1_0.distcp") == []
    told = "EOFError\nwhere it came from"
    assert run(told, told) == [f"__1_0.distcp {damage}: EOFError"]
