"""Cooperative ranks: one thread per rank in the pytest process, one of them running at a time."""
