"""GO: stop and go. A run that stopped and resumed, in other processes, equals one that did not."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pytest_cplife.rules.case import Case, NotCovered
from pytest_cplife.rules.files import file_averages, same_file
from pytest_cplife.rules.model import Finding, Measurement, Violation
from pytest_cplife.rules.onward import same_steps
from pytest_cplife.rules.parts import carried, compare_parts, extra_values
from pytest_cplife.rules.phases import completes
from pytest_cplife.rules.registry import rule
from pytest_cplife.rules.save import file_model, file_state

_RUNS = ("uninterrupted", "resumed")
_MOMENTS = ("after next step", "end")


@rule(
    "GO-01",
    "a resumed run trains and saves",
    statement="After a load, train() and a second save() complete on every rank.",
    why="State that loads but cannot step is found at the first step of an expensive morning.",
    cause="Optimizer state whose kind or placement is not its parameter's.",
    runs=("resumed",),
)
def resumed_completes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "GO-01", "resumed")


@rule(
    "GO-02",
    "weights equal the uninterrupted run's",
    statement="After one step and at the end, the resumed run's weights equal the uninterrupted"
    " run's: bit for bit, or within the trainer's own measured noise.",
    why="This is what a checkpoint is for.",
    cause="Something that steers the next step did not come back: moments, step counts, lr, data"
    " position or random streams; the LOAD, OPT and SCHED rules say which.",
    runs=_RUNS,
    budgeted=True,
    events=("weights moved on",),
)
def weights_equal(case: Case) -> Iterator[Finding]:
    yield from _equal(case, "weights")


@rule(
    "GO-03",
    "optimizer state equals the uninterrupted run's",
    statement="After one step and at the end, the resumed run's optimizer state equals the"
    " uninterrupted run's.",
    why="Weights can agree for a step or two while moments already differ.",
    cause="As for GO-02; where weights agree and moments do not, gradients or step counts differ.",
    runs=_RUNS,
    budgeted=True,
    events=("optimizer state",),
)
def optimizer_equal(case: Case) -> Iterator[Finding]:
    yield from _equal(case, "optimizer state")


@rule(
    "GO-04",
    "losses equal the uninterrupted run's",
    statement="Each loss after the resume equals the uninterrupted run's at that step.",
    why="A first loss that differs while weights agree points at data position or randomness.",
    cause="The data loader starts again, or random streams are not those of the uninterrupted run.",
    runs=_RUNS,
    budgeted=True,
)
def losses_equal(case: Case) -> Iterator[Finding]:
    stretches = ["next"]
    if all("rest" in journal.losses for journal in case["uninterrupted"].ranks):
        stretches.append("rest")
    expected = case["uninterrupted"].losses(*stretches)[0]
    observed = case["resumed"].losses(*stretches)[0]
    if len(expected) != len(observed):
        yield Violation("losses", f"{len(expected)}", f"{len(observed)}", "resumed")
    worst, allowed = 0.0, 0.0
    for number, (a, b) in enumerate(zip(expected, observed, strict=False), start=1):
        gap = abs(a - b) if a != b else 0.0
        budget = case.noise.budget("losses", str(number))
        worst, allowed = max(worst, gap), max(allowed, budget)
        if gap > budget or math.isnan(gap):
            yield Violation(
                f"loss {number} after the load",
                repr(a),
                repr(b),
                "resumed",
                difference=gap,
                budget=budget,
                step=number,
            )
    yield Measurement(f"losses ({len(expected)} compared)", worst, allowed)


@rule(
    "GO-05",
    "counters and schedules equal the uninterrupted run's",
    statement="At the end, counters, schedulers, hyperparameters and what named_extra_state() tells"
    " equal, in the resumed run, the uninterrupted run's.",
    why="An offset here shows at the next milestone, long after anybody looks at the resume.",
    cause="A counter restored but not advanced, or advanced twice.",
    runs=_RUNS,
    events=("steps before the save",),
)
def counters_equal(case: Case) -> Iterator[Finding]:
    a, b = case["uninterrupted"].at("end"), case["resumed"].at("end")
    parts = ["counters", "schedulers", "hyperparameters"]
    if extra_values(a) or extra_values(b):
        parts.append("extra state")
    yield from compare_parts(case, case["resumed"], a, b, *parts)


@rule(
    "GO-06",
    "buffers equal the uninterrupted run's",
    statement="At the end the resumed run's buffers equal the uninterrupted run's.",
    why="Running statistics steer evaluation, which nobody compares between runs.",
    cause="Buffers restored on rank 0 only, or updated by the load's own forward.",
    runs=_RUNS,
    budgeted=True,
    events=("buffers",),
)
def buffers_equal(case: Case) -> Iterator[Finding]:
    yield from _equal(case, "buffers")


def _equal(case: Case, part: str) -> Iterator[Finding]:
    run, other = case["uninterrupted"], case["resumed"]
    for moment in _MOMENTS:
        a, b = run.at(moment), other.at(moment)
        yield from compare_parts(case, run, a, b, part, noisy_at=moment)


@rule(
    "GO-07",
    "the checkpoint is not the end",
    statement="Weights at the end of the uninterrupted run differ from those at the save point.",
    why="If nothing changes after the save, that resumed equals uninterrupted says nothing.",
    cause="Training that stopped before the save: an lr that has reached 0, or data that ran out.",
    runs=("uninterrupted",),
    events=("trainable parameters",),
)
def intermediate_differs(case: Case) -> Iterator[Finding]:
    run = case["uninterrupted"]
    a, b = run.at("at save point").parameters, run.at("end").parameters
    moved = [name for name in a if run.assembler.digest(a[name]) != run.assembler.digest(b[name])]
    if not moved:
        yield Violation("all weights", "moved after the save point", "none has", "end")
    yield Measurement("weights that stood still", float(len(a) - len(moved)), math.inf)


@rule(
    "GO-08",
    "a second checkpoint holds live values",
    statement="What a resumed run saves holds its own live weights, optimizer state and averages,"
    " as full plain tensors.",
    why="A manager that keeps the loaded state saves it again and again: only the second resume"
    " shows it.",
    cause="Live objects replaced by loaded copies in the dictionary that is saved.",
    runs=("resumed", "files"),
)
def second_generation(case: Case) -> Iterator[Finding]:
    run, live = case["resumed"], case["resumed"].at("end")
    file = case["files"].file("saved again")
    for path in file.dtensors:
        yield Violation(path, "a plain tensor", "a DTensor", "second file")
    yield from file_model(case, file, run, live, "second file")
    if file.optimizers:
        yield from file_state(case, file, run, live, "second file")
    if file.ema is not None and live.ranks[0].ema is not None:
        yield from file_averages(case, file, run, live, "second file")


@rule(
    "GO-09",
    "three stops in a row",
    statement="A run that stops three times, the last time right after a load, and is resumed each"
    " time in other processes, comes back each time as it stopped and ends as the uninterrupted run"
    " does: weights, buffers, optimizer state, averages, hyperparameters, schedules and counters.",
    why="Runs of weeks stop many times; what is only kept in memory survives one resume.",
    cause="Counters that restart at each load, or a second file that holds what the first held.",
    runs=("uninterrupted", "relayed", "relayed again", "relayed thrice"),
    budgeted=True,
    events=("weights moved on",),
)
def three_stops(case: Case) -> Iterator[Finding]:
    yield from completes(case, "GO-09", "relayed", "relayed again", "relayed thrice")
    run, last = case["uninterrupted"], case["relayed thrice"]
    anywhere = case.declared.save_points == "any"
    stopped = carried(case["relayed"].at("after next step" if anywhere else "after load"))
    for resumed in (case["relayed again"], last):
        yield from compare_parts(case, run, stopped, resumed.at("after load"))
    yield from compare_parts(case, run, run.at("end"), last.at("end"), noisy_at="end")


@rule(
    "GO-10",
    "a checkpoint from before the first step resumes",
    statement="What was saved before the first step loads, and the first step from it equals the"
    " uninterrupted run's.",
    why="Step 0 is where seeds, sweeps and comparisons branch off.",
    cause="A load that expects optimizer state where there was none, or that makes a hidden step.",
    runs=("uninterrupted", "early", "rewound"),
    budgeted=True,
)
def early_resumes(case: Case) -> Iterator[Finding]:
    yield from completes(case, "GO-10", "rewound")
    moment = "after first step"
    run = case["uninterrupted"]
    a, b = run.at(moment), case["rewound"].at(moment)
    yield from compare_parts(case, run, a, b, "weights", "optimizer state", noisy_at=moment)


@rule(
    "GO-13",
    "later steps agree on another mesh",
    statement="Without dropout, the steps after a load on another mesh than the saving one move the"
    " weights as they do there, up to rounding as it is measured on the saving mesh.",
    why="A resume on a grown cluster may have all of its state and still train another way.",
    cause="Moments or step counts lost where the mesh differs, an lr or a loss scaled by the number"
    " of ranks, or a data position that counts a rank's own batches.",
    runs=("onward", "crossed"),
)
def later_steps_agree(case: Case) -> Iterator[Finding]:
    if case.partner is None:
        raise NotCovered("only one mesh is run, so there is no other to load from")
    yield from completes(case, "GO-13", "onward", "crossed")
    yield from same_steps(case["onward of partner"], case["crossed"], origin=str(case.partner))


@rule(
    "GO-15",
    "loading and saving again gives the same file",
    statement="A file that is loaded and saved again at once has every entry that it had: weights,"
    " averages, optimizer state and hyperparameters bit for bit, all others at their place.",
    why="What no step shows (a log, a best score, a placeholder's weights) is lost a resume later.",
    cause="A saver that writes what this process has made, and not what it was given.",
    runs=("relayed", "relayed again"),
)
def same_file_again(case: Case) -> Iterator[Finding]:
    run = case["relayed again"]
    before, after = run.file("loaded"), run.file("saved again")
    yield from same_file(case, run, before, after, "third file, after the second one")
