"""The page of the planted faults is printed as it is."""

from __future__ import annotations

from pathlib import Path

from pytest_cplife.selftest.catalogue import FAULTS
from pytest_cplife.selftest.listing import listing

PAGE = Path(__file__).parents[1] / "docs" / "faults.md"


def test_the_page_is_up_to_date() -> None:
    """If not: ``python -m pytest_cplife.selftest --list > docs/faults.md``."""
    assert PAGE.read_text(encoding="utf-8") == listing()


def test_every_fault_says_what_is_wrong() -> None:
    for fault in FAULTS:
        assert fault.why.endswith("."), fault.name
        assert f"| {fault.name} |" in listing()
