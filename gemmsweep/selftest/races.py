"""The races: six names of one loaded kernel, from fresh bursts to a stored outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gemmsweep import contest, regimes, verdict
from gemmsweep.bench import Entrant
from gemmsweep.contest import Contest, Rules
from gemmsweep.entry import check_one, compile_all, enlist, require_feasible_here
from gemmsweep.errors import EnvironmentProblem, NothingToShow
from gemmsweep.model import Inputs, Problem, Value
from gemmsweep.protocol import DeviceFailure
from gemmsweep.record import Attempt, SweepStart
from gemmsweep.references import WORTH_NAMING
from gemmsweep.selftest.kinds import LABELS, Bed, Kind
from gemmsweep.selftest.summary import counts
from gemmsweep.store import Filter, StoredSweep

WARM_UP_S = 3.0
MOST_BURST_MS = 140.0  # a known difference takes 50 to 200 launches a burst: of slow kernels that is too long to race


def run(bed: Bed, problems: Sequence[Problem], kinds: Sequence[Kind], sweeps: int) -> None:
    """As many sweeps as are missing to `sweeps` of each kind and problem; each problem gets an equal share of the time."""
    for position, problem in enumerate(problems):
        done = {kind.name: len(on_record(bed, kind, problem)) for kind in kinds}
        if min(done.values()) >= sweeps:
            continue
        ends = bed.clock() + max(bed.deadline - bed.clock(), 0) / (len(problems) - position)
        if bed.clock() >= ends:
            return
        reference = prepare(bed, problem)
        bed.watch.stage(f"{problem}", sum(max(0, sweeps - count) for count in done.values()))
        for index in range(sweeps):
            for kind in (k for k in kinds if done[k.name] <= index and (k.name, problem) not in bed.skipped):
                if bed.clock() >= ends:
                    break
                one_sweep(bed, kind, problem, reference, index)
                bed.watch.advance(kind.name)
    bed.worker.keep_warm(None)


def on_record(bed: Bed, kind: Kind, problem: Problem, *, rounds: bool = False) -> list[StoredSweep]:
    """Finished, undisturbed sweeps of this kind, problem, subject and protocol on this very device."""
    wanted = Filter(experiment=kind.name, shape=(problem.shape,), dtype=problem.dtype)
    return [
        sweep
        for sweep in bed.store.stored_sweeps(wanted, rounds=rounds)
        if counts(sweep)
        and sweep.start.problem == problem
        and sweep.start.protocol == bed.protocol
        and sweep.start.template == bed.subject
        and sweep.environment.device.uuid == bed.worker.info.uuid
    ]


def prepare(bed: Bed, problem: Problem) -> Attempt:
    """Data, reference and subject on the device, each checked once; returns the reference's row."""
    worker = bed.worker
    bed.watch.stage("prepare", 1)
    worker.prepare(problem, Inputs(), "cold")
    threads = 1
    if bed.template is not None:
        require_feasible_here(bed.template, problem, worker.info)
        enlisted = enlist(bed.template, problem, worker.info, {bed.subject: bed.template.defaults()})
        (candidate,) = compile_all(enlisted, worker.info, bed.watch, bed.builders)
        threads = candidate.launch.threads if candidate.launch is not None else 1
    version, kernels, _ = worker.enter_reference(Entrant(bed.vendor, threads=threads), bed.burst_ms)
    if bed.template is not None:
        candidate = check_one(candidate, worker, bed.burst_ms) if candidate.alive else candidate
        if not candidate.alive:
            raise NothingToShow(f"template '{bed.subject}' cannot be tested on {problem}: {candidate.attempt.reason}")
    if worker.info.kind == "cuda" and bed.protocol == "rounds":
        worker.keep_warm(bed.vendor)
    return Attempt(bed.vendor, "reference", "ok", version=version, kernels=tuple(kernels))


def one_sweep(bed: Bed, kind: Kind, problem: Problem, reference: Attempt, index: int) -> None:
    """One race of six labels, from fresh bursts to its stored outcome. The right answer's place moves from sweep to sweep."""
    turn = index % LABELS
    slower = kind.slower[-turn:] + kind.slower[:-turn] if turn else kind.slower
    labels = {f"{bed.subject}#{place}": per_mille for place, per_mille in enumerate(slower, start=1)}
    if not make_ready(bed, kind, problem, labels):
        return
    bed.position += 1
    start = SweepStart(
        bed.session_id, f"selftest/{kind.name}", bed.position, "selftest", kind.name, bed.subject, problem, Inputs(), None, (),
        {}, "", "equal-clock", "cold", bed.protocol, bed.command,
    )  # fmt: skip
    key = bed.store.begin_sweep(start, bed.environment)
    for label, per_mille in labels.items():
        config: dict[str, Value] = {"LABEL": label.rpartition("#")[2], "SLOWER_PER_MILLE": per_mille}
        bed.store.save_attempt(key, Attempt(label, "config", "ok", bed.subject, config=config))
    bed.store.save_attempt(key, reference)
    held = Contest(list(labels), [reference.label])
    foreign = bed.worker.foreign()
    course = regimes.Course(
        Rules(WORTH_NAMING, seed=index), lambda r, bursts: bed.store.save_round(key, r, bursts), lambda _: None
    )
    if bed.protocol == "alone":
        regimes.alone(held, bed.worker, course, ready=True)
    else:
        if bed.worker.info.kind == "cuda":
            bed.worker.warm_up(reference.label, WARM_UP_S)
        contest.run(held, bed.worker, course.rules, course.save_round, course.advance)
    if held.failures:
        label, failure = next(iter(held.failures.items()))
        raise EnvironmentProblem(
            f"the selftest of {problem} broke off: {label}: {failure.reason}. See: gemmsweep doctor"
        )
    foreign = foreign or bed.worker.foreign()
    found = verdict.outcome(held, present=None, foreign=foreign)
    if bed.protocol == "alone":
        found = replace(regimes.naive(held, WORTH_NAMING), contended=bool(foreign))
    bed.store.finish_sweep(key, replace(found, adopted=False))


def make_ready(bed: Bed, kind: Kind, problem: Problem, labels: Mapping[str, int]) -> bool:
    """The six labels on the device. False, with a note, where their bursts would be too long or memory too small."""
    alone = bed.protocol == "alone"
    estimate_us = bed.worker.recalibrate(bed.subject, regimes.SINGLE_MS if alone else bed.burst_ms)
    if bed.vendor != bed.subject:
        bed.worker.recalibrate(bed.vendor, regimes.SINGLE_MS if alone else bed.burst_ms)
    why = ""
    if kind.step > 1 and kind.step * estimate_us / 1e3 > MOST_BURST_MS:
        why = f"bursts of {kind.step} launches would take {kind.step * estimate_us / 1e3:.0f} ms"
    else:
        try:
            bed.worker.repeat(bed.subject, labels, regimes.SINGLE_MS if alone else bed.burst_ms)
        except DeviceFailure as failure:
            why = failure.reason
    if why:
        bed.skipped.add((kind.name, problem))
        bed.watch.note(f"{problem}: no {kind.name}: {why}.")
    return not why
