"""How much is tried, and how: three profiles that owe nothing to the user's own settings.

Hypothesis settings that are not named are taken from the ambient profile, which is another one
in CI; so every setting is named here, and settings are applied to each search, never loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, Verbosity, settings

from pytest_cplife.settings import PROFILES, Settings


@dataclass(frozen=True, slots=True)
class Profile:
    """A budget.

    Attributes:
        name: what ``--cplife-profile`` calls it.
        examples: cheap examples per search; suites with dearer ones divide it (`Suite.cost`).
        shrinks: examples that may be spent on making a failure smaller, divided likewise.
        derandomize: the same examples every time.
        seconds: no further example is drawn after that time. Where the examples are always the same
            there is one round of `examples`, else one after another until then.
    """

    name: str
    examples: int
    shrinks: int
    derandomize: bool
    seconds: float | None = None

    def settings(self, cost: int) -> settings:
        """The hypothesis settings of one round, with every field pinned."""
        return settings(
            backend="hypothesis",
            max_examples=max(5, self.examples // cost),
            derandomize=self.derandomize,
            # Examples that failed are kept in replay files, which outlive hypothesis' versions.
            database=None,
            deadline=None,
            # Dear examples are made smaller by `Suite.smaller` alone, which takes fewer steps.
            phases=(Phase.generate, *([Phase.shrink] if cost == 1 else [])),
            print_blob=False,
            report_multiple_bugs=False,
            stateful_step_count=20,
            suppress_health_check=tuple(HealthCheck),
            verbosity=Verbosity.quiet,
        )

    def shrinks_of(self, cost: int) -> int:
        """At least some: of what a smaller plan does most has been done for a larger one."""
        return self.shrinks if cost == 1 else max(self.shrinks // cost, 25)


QUICK = Profile("quick", examples=40, shrinks=60, derandomize=True, seconds=3.0)
"""A look that costs little, whatever a trainer's steps cost: the first of always the same examples,
as many as fit into a few seconds."""

GATE = Profile("gate", examples=300, shrinks=500, derandomize=True)
"""The same examples on every machine and every day: for CI."""


def profile_of(settings: Settings) -> Profile:
    """The profile that a session asks for.

    Raises:
        ValueError: there is none of that name.
    """
    if settings.profile == "explore":
        return explore(settings.fuzz_seconds)
    profiles = {profile.name: profile for profile in (QUICK, GATE)}
    if settings.profile not in profiles:
        raise ValueError(f"profile {settings.profile!r}; accepted are {', '.join(PROFILES)}")
    return profiles[settings.profile]


def explore(seconds: float) -> Profile:
    """Other examples every time, for `seconds`."""
    return Profile("explore", 300, 2000, derandomize=False, seconds=seconds)
