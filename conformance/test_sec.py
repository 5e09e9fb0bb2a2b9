"""SEC: what a load executes, and where it reads."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("SEC"))
