"""The suite's own proof: planted faults that it must find, and healthy trainers it must let pass.

``pytest --cplife-selftest`` judges all of them on this machine; ``python -m
pytest_cplife.selftest`` prints the kill matrix, every fault with all rules that it breaks. The
trainers are also worked examples of adapters for several designs.
"""
