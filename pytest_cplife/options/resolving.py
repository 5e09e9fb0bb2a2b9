"""From a pytest configuration to checked options."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from pytest_cplife.launchers import LAUNCHERS
from pytest_cplife.options.reading import Reader, bad
from pytest_cplife.options.table import (
    BACKENDS,
    DEFAULTS,
    DEVICES,
    LEVELS,
    OPTIONS,
    RANKS,
    WITHOUT_ADAPTER,
)
from pytest_cplife.options.values import Options, RankOptions, ReplayOptions, reference
from pytest_cplife.settings import PROFILES

if TYPE_CHECKING:
    from pytest_cplife.rules.model import Level


def resolve_ranks(config: pytest.Config) -> RankOptions:
    """The checked options about ranks, which need no adapter.

    Raises:
        pytest.UsageError: a value cannot be used.
    """
    read = Reader(config)
    device = read.choice("device", DEVICES, DEFAULTS.device)
    backend = read.choice("backend", BACKENDS, DEFAULTS.backend)
    if (device, backend) == ("cpu", "nccl"):
        raise pytest.UsageError(
            "--cplife-backend=nccl needs --cplife-device=cuda; on cpu, accepted are auto and gloo"
        )
    return RankOptions(
        max_world_size=read.count("max-world-size"),
        launcher=read.choice("launcher", LAUNCHERS, DEFAULTS.launcher),
        device=device,
        backend=backend,
        timeout=read.seconds("timeout", DEFAULTS.timeout),
    )


def resolve(config: pytest.Config) -> Options | None:
    """The checked options; None where no adapter is given and the plugin stays dormant.

    Raises:
        pytest.UsageError: a value cannot be used, or an option needs an adapter.
    """
    read = Reader(config)
    adapter, base, given_by_option = read.adapter()
    if not adapter:
        _refuse_without_adapter(read)
        return None
    ranks = resolve_ranks(config)
    options = Options(
        adapter=adapter,
        base=base,
        given_by_option=given_by_option,
        suite=bool(config.getoption("cplife_suite")),
        meshes=read.meshes(),
        max_world_size=ranks.max_world_size,
        steps=read.steps(),
        launcher=ranks.launcher,
        device=ranks.device,
        backend=ranks.backend,
        timeout=ranks.timeout,
        strict=read.flag("strict"),
        level=cast("Level", read.choice("level", LEVELS, LEVELS[0])),
        require=tuple(
            dict.fromkeys(
                word.strip()
                for text in read.texts("require")
                for word in text.split(",")
                if word.strip()
            )
        ),
        expected=read.path("expected"),
        golden=read.golden(),
        record_golden=read.record_golden(),
        reports=read.reports(),
        profile=read.choice("profile", PROFILES, DEFAULTS.profile),
        fuzz_seconds=read.seconds("fuzz-seconds", DEFAULTS.fuzz_seconds),
        certify=read.flag("certify"),
    )
    if options.certify and options.expected is not None:
        raise pytest.UsageError(
            "--cplife-certify accepts no expected failures; leave out "
            f"--cplife-expected={options.expected.name}"
        )
    if read.text("fuzz-seconds") is not None and options.profile != "explore":
        raise bad("profile", options.profile, "explore, where --cplife-fuzz-seconds is given")
    return options


def resolve_replay(config: pytest.Config) -> ReplayOptions | None:
    """The checked options of a run that tries one example again; None where it is none.

    Raises:
        pytest.UsageError: a value cannot be used, or an option means nothing in such a run.
    """
    read = Reader(config)
    file = config.getoption("cplife_replay")
    if file is None:
        return None
    for option in OPTIONS:
        if option.name not in RANKS | {"adapter", "replay"} and read.given(option):
            raise pytest.UsageError(
                f"--cplife-replay tries one example, which says all else; leave out {option.flag}"
            )
    adapter, base, _ = read.adapter()
    return ReplayOptions(
        file=config.invocation_params.dir / file,
        adapter=reference(adapter, base) if adapter else None,
        ranks=resolve_ranks(config),
    )


def _refuse_without_adapter(read: Reader) -> None:
    """An option that would silently do nothing is a mistake of the user's that must show."""
    for option in OPTIONS:
        if option.name not in WITHOUT_ADAPTER and read.given(option):
            raise pytest.UsageError(
                f"{option.flag} needs an adapter: give --cplife-adapter=MOD:ATTR, "
                "or cplife_adapter in the ini file"
            )
