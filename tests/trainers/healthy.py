"""The refs of all healthy adapters: none of them may trip a rule on any mesh it declares."""

from __future__ import annotations

HEALTHY = (
    "pytest_cplife.reference_impl:Adapter",
    "tests.trainers.fsdp2:Adapter",
    "tests.trainers.sharded:Adapter",
    "tests.trainers.keeping:Adapter",
    "tests.trainers.ddp:Adapter",
    "tests.trainers.ddp:Rebucketing",
    "tests.trainers.sgd:Adapter",
    "tests.trainers.sgd:Momentum",
    "tests.trainers.two_optimizers:Adapter",
    "tests.trainers.accumulation:Adapter",
    "tests.trainers.accumulation:Ddp",
    "tests.trainers.bf16_master:Adapter",
    "tests.trainers.restore_rng:Adapter",
    "tests.trainers.no_rng:Adapter",
    "tests.trainers.epoch_end:Adapter",
    "tests.trainers.no_serial:Adapter",
    "tests.trainers.lazy_load:Adapter",
    "tests.trainers.tp_only:Adapter",
    "tests.trainers.hand_dtensor:Adapter",
    "tests.trainers.versioned:Adapter",
    "tests.trainers.finetune:Adapter",
    "tests.trainers.averaged:Adapter",
    "tests.trainers.averaged:Later",
)
