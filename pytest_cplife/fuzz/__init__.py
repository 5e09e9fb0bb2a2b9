"""Fuzzing: descriptions of sharded tensors and plans, the engine that tries them, and replay.

Descriptions are plain values: hypothesis (:mod:`pytest_cplife.strategies`) only draws them, so that
a rank never imports it and a replay file outlives its version.
"""
