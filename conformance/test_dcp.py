"""DCP: sharded checkpoints."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("DCP"))
