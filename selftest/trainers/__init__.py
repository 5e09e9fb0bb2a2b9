"""Healthy trainers of several designs; the suite must find nothing wrong with any of them.

Each is named by a ref such as ``pytest_cplife.selftest.trainers.fsdp2:Adapter``. They share a
small model (`model`), one sequence of global batches (`data`), the offset seeding of random
streams (`streams`) and a training loop (`loop`); what differs is how they distribute and how they
save.
"""
