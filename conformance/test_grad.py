"""GRAD: steps, gradients and replicas."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("GRAD"))
