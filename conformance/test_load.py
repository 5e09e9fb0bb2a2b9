"""LOAD: what a load restores."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("LOAD"))
