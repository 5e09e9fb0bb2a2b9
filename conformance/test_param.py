"""PARAM: parameters, buffers and their names."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("PARAM"))
