"""MEM: what saving and loading cost in memory."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("MEM"))
