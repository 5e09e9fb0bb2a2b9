"""GO: stop and go: resumed equals uninterrupted."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("GO"))
