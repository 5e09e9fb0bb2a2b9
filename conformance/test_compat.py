"""COMPAT: earlier formats."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("COMPAT"))
