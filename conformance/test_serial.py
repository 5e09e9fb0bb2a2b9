"""SERIAL: the serial model and the checkpoint."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("SERIAL"))
