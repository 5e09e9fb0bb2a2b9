"""SCHED: learning-rate schedules."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("SCHED"))
