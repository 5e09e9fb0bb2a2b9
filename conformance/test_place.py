"""PLACE: how ranks start and where tensors live."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("PLACE"))
