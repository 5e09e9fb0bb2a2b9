"""Planted faults: healthy trainers with one thing wrong, and the rule that must say so.

Each module plants the faults of one group of rules. A fault is a class whose docstring is the
mechanism in words; the decorator `plant` makes it an adapter under its own name, such as
``pytest_cplife.selftest.faults.load:SkipsAKey``, and enters it in the catalogue.
"""
