"""OPT: optimizer state and hyperparameters."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("OPT"))
