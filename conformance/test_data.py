"""DATA: the data stream."""

from pytest_cplife.suite import rule_tests

globals().update(rule_tests("DATA"))
