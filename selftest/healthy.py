"""The refs of all healthy adapters: none of them may trip a rule on any mesh it declares."""

from __future__ import annotations

HEALTHY = (
    "pytest_cplife.reference_impl:Adapter",
    "pytest_cplife.selftest.trainers.fsdp2:Adapter",
    "pytest_cplife.selftest.trainers.sharded:Adapter",
    "pytest_cplife.selftest.trainers.thirds:Adapter",
    "pytest_cplife.selftest.trainers.keeping:Adapter",
    "pytest_cplife.selftest.trainers.ddp:Adapter",
    "pytest_cplife.selftest.trainers.ddp:Rebucketing",
    "pytest_cplife.selftest.trainers.sgd:Adapter",
    "pytest_cplife.selftest.trainers.sgd:Momentum",
    "pytest_cplife.selftest.trainers.two_optimizers:Adapter",
    "pytest_cplife.selftest.trainers.accumulation:Adapter",
    "pytest_cplife.selftest.trainers.accumulation:Ddp",
    "pytest_cplife.selftest.trainers.bf16_master:Adapter",
    "pytest_cplife.selftest.trainers.restore_rng:Adapter",
    "pytest_cplife.selftest.trainers.no_rng:Adapter",
    "pytest_cplife.selftest.trainers.global_order:Adapter",
    "pytest_cplife.selftest.trainers.epoch_end:Adapter",
    "pytest_cplife.selftest.trainers.no_serial:Adapter",
    "pytest_cplife.selftest.trainers.lazy_load:Adapter",
    "pytest_cplife.selftest.trainers.tp_only:Adapter",
    "pytest_cplife.selftest.trainers.zero1:Adapter",
    "pytest_cplife.selftest.trainers.hand_dtensor:Adapter",
    "pytest_cplife.selftest.trainers.versioned:Adapter",
    "pytest_cplife.selftest.trainers.finetune:Adapter",
    "pytest_cplife.selftest.trainers.averaged:Adapter",
    "pytest_cplife.selftest.trainers.averaged:Later",
)
