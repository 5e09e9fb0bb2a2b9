"""EMA: averaged weights."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("EMA"))
