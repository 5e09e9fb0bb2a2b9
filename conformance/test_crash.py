"""CRASH: interrupted saves."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("CRASH"))
