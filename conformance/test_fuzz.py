"""FUZZ: fuzzed meshes, placements and plans."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("FUZZ"))
