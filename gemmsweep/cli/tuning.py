"""What `gemmsweep tune` is made of: its requests, one problem after the other, and the plan of a dry run."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from gemmsweep.cli.live import STAGES
from gemmsweep.cli.options import command_line
from gemmsweep.report.progress import Progress

if TYPE_CHECKING:
    from gemmsweep.build import Builders
    from gemmsweep.errors import EnvironmentProblem
    from gemmsweep.model import Config, DeviceInfo, Problem
    from gemmsweep.session import Request, Session
    from gemmsweep.store import Store, StoredSession
    from gemmsweep.template.declaration import Template
    from gemmsweep.tune import Answer
    from gemmsweep.worker import Worker

LEAST_S = 1.0  # with less left, a problem is answered from the record
LOOK_AGAIN_S = 0.5  # whether another process is done with a problem


def wanted_templates(options: dict[str, Any], device: DeviceInfo) -> list[Template]:
    """Those of --template, else all that run on the device; raises UsageError where none does."""
    from gemmsweep.choose import require_templates_here
    from gemmsweep.errors import UsageError
    from gemmsweep.template.library import find_template

    if options["templates"]:
        found = list({t.source_sha256: t for t in map(find_template, options["templates"])}.values())
        names = [template.name for template in found]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"--template names two kernels {name!r}: rename one file, results go by name.")
        return found
    return require_templates_here(device)


def tune_requests(
    options: dict[str, Any], templates: Sequence[Template], device: DeviceInfo
) -> tuple[list[Request], list[str]]:
    """One per distinct problem, and what is wrong with each that cannot be; raises UsageError where that is all of them."""
    from gemmsweep.choose import DEFAULT_DTYPE
    from gemmsweep.cli.request import each_wanted, require_some, told, wanted_problems
    from gemmsweep.errors import UsageError
    from gemmsweep.experiment import Experiment
    from gemmsweep.session import Request, race_limit_s

    if not options["shapes"] and not options["shapes_file"]:
        raise UsageError("tune needs problems: --shapes FILE (a CSV of m,n,k[,dtype,layout,count]) or --shape MxNxK.")
    said = {**options, "dtype": options["dtype"] or DEFAULT_DTYPE, "layout": options["layout"] or "nn"}
    asked = wanted_problems(said, Experiment(""))
    problems, refused = each_wanted(asked, lambda wanted: wanted.make(templates[0], device))
    require_some(problems, refused)
    requests = [
        Request(
            templates[0], problem, (), regime=options["regime"], race_limit_s=race_limit_s(device),
            remeasure=options["remeasure"], command=command_line(),
        )
        for problem in dict.fromkeys(problems)
    ]  # fmt: skip
    return [replace(request, key=tune_key(request, templates)) for request in requests], told(refused)


def tune_key(request: Request, templates: Sequence[Template]) -> str:
    """Hash of what was asked, the time aside: an equal request goes on with it, or shows what it found."""
    families = sorted((t.name, t.source_sha256) for t in templates)
    parts = ["tune", families, request.problem, request.inputs, request.regime, request.l2, request.min_effect]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


class Watcher:
    """The `Watch` of one problem: its stage on a terminal; in a pipe a line per problem, and notes."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        progress.stage(title)

    def stage(self, name: str, total: int) -> None:
        self._progress.update(0, STAGES.get(name, name))

    def advance(self, detail: str = "") -> None: ...

    def note(self, text: str) -> None:
        self._progress.message(f"  {text}")


class Tuning:
    """Problems one after the other. A context manager: it holds the progress bar."""

    def __init__(
        self, store: Store, worker: Worker, builders: Builders, templates: Sequence[Template], deadline: float
    ) -> None:
        self.store, self.worker, self.templates, self.deadline = store, worker, list(templates), deadline
        self.progress = Progress()
        self._builders = builders
        self._faults: dict[str, EnvironmentProblem] = {}  # by problem: of the device, the machine or what it holds
        self._raced = 0  # sweeps finished by this command

    def __enter__(self) -> Self:
        self.progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)

    def answers(self, requests: Sequence[Request]) -> list[Answer]:
        """An answer per problem; what time is left then goes to those that it was cut for, until nothing more is raced."""
        from gemmsweep.tune import QUICK_S

        found: dict[str, Answer] = {}
        # What nothing can run is answered at once: before the others, or it would have a share of the time.
        waiting, before = sorted(requests, key=lambda r: runs_here(self.templates, r.problem, self.worker.info)), -1
        while waiting and self._raced > before:
            before = self._raced
            for i, request in enumerate(waiting):
                again = found.get(request.key)
                if again is None:
                    found[request.key] = self.answer(request, len(waiting) - i)
                elif self.deadline - time.monotonic() > LEAST_S:
                    answer = self.answer(replace(request, remeasure=False), len(waiting) - i)
                    if fault := self._faults.pop(request.key, None):  # what the first visit found stands
                        self.progress.message(f"  {request.problem}: {fault}")
                        answer = replace(again, complete=True, seconds=0.0)
                    found[request.key] = replace(answer, seconds=again.seconds + answer.seconds)
            # A second visit costs data and finals again: fewer problems, then, with enough time for each.
            room = int((self.deadline - time.monotonic()) / QUICK_S)
            waiting = [request for request in requests if not found[request.key].complete][: max(0, room)]
        if len(self._faults) == len(requests):
            raise self._faults[requests[0].key]
        for request in requests:
            found[request.key] = self._awaited(request, found[request.key])
        return [found[request.key] for request in requests]

    def _awaited(self, request: Request, answer: Answer) -> Answer:
        """The answer, once no other process is at the problem, or this command's time is up."""
        if answer.elsewhere:
            self.progress.message(f"  {request.problem}: {answer.note}")
        while answer.elsewhere and self.deadline - time.monotonic() > LEAST_S:
            time.sleep(LOOK_AGAIN_S)
            if self.deadline - time.monotonic() < LEAST_S:
                break
            answer = self.answer(replace(request, remeasure=False), 1)
        return answer

    def answer(self, request: Request, problems: int) -> Answer:
        """One problem, in its share of the time left to so many; what is wrong with it is its answer."""
        from gemmsweep import tune
        from gemmsweep.errors import EnvironmentProblem, UnderWay, UsageError

        on_record = partial(tune.on_record, self.store, request.problem, self.worker.info, self.templates)
        stored = None if request.remeasure else self.store.find_session(request.key, self.worker.info.uuid)
        if stored is not None and stored.finished:
            found = on_record("finished before", stored.session_id)
            without = "finished before, without a verified result: --remeasure begins again"
            return found if found.best is not None else replace(found, note=without)
        if self.deadline - time.monotonic() < LEAST_S:
            return on_record("no time left for it")
        try:
            return self._search(request, stored, problems)
        except UsageError as error:
            return on_record(str(error))
        except UnderWay as error:
            return replace(on_record(str(error).rstrip(".")), elsewhere=True)
        except EnvironmentProblem as error:
            self._faults[request.key] = error
            if not self.worker.survived():
                raise
            return on_record(str(error))

    def _search(self, request: Request, stored: StoredSession | None, problems: int) -> Answer:
        """The search itself, alone with its device."""
        from gemmsweep import tune
        from gemmsweep.cli.run import locked
        from gemmsweep.report.figures import duration

        began = time.monotonic()
        part = tune.share(began, self.deadline, problems, request, self.worker.info)
        with locked(request, self.worker.info, self.store.path):
            able = runs_here(self.templates, request.problem, self.worker.info)
            reach = duration(part.seconds) if able else "no family can run it"
            session = self._session(request, stored, f"{request.problem} ({reach})")
            hunt = tune.run(session, stored, self.templates, part)
        answer = tune.answer_of(hunt, time.monotonic() - began)
        session.watch.note(self._summary(answer))
        return answer

    def _session(self, request: Request, stored: StoredSession | None, title: str) -> Session:
        from gemmsweep.environment import current
        from gemmsweep.session import Session
        from gemmsweep.store.ids import uuid7

        return Session(
            request, self.store, self.worker, Watcher(self.progress, title), current(self.worker.info), self._builders,
            stored.session_id if stored is not None else uuid7(), time.monotonic, self._count,
        )  # fmt: skip

    def _count(self, key: int) -> None:
        self._raced += 1

    def _summary(self, answer: Answer) -> str:
        """One line when a problem is done."""
        from gemmsweep.report import tuned
        from gemmsweep.report.figures import duration
        from gemmsweep.store import Filter

        finals = list(self.store.runs(Filter(sweep=answer.best["sweep_id"]))) if answer.best is not None else []
        return f"{tuned.summary(answer.to_json(), finals)}; {duration(answer.seconds)}"


def start_here(template: Template, problem: Problem, device: DeviceInfo) -> Config:
    """Where a family would start without a record. Raises UsageError where it cannot run the problem on the device."""
    from gemmsweep.entry import require_feasible_here
    from gemmsweep.feasible import first_feasible

    require_feasible_here(template, problem, device)
    return first_feasible(template, problem, device)


def runs_here(templates: Sequence[Template], problem: Problem, device: DeviceInfo) -> bool:
    """Whether some family takes the problem on the device."""
    from gemmsweep.errors import UsageError

    for template in templates:
        with contextlib.suppress(UsageError):
            start_here(template, problem, device)
            return True
    return False


def each_share_s(
    limit_s: float, requests: Sequence[Request], templates: Sequence[Template], device: DeviceInfo
) -> float:
    """The time of one problem; what no family can run is answered at once, and has none."""
    return limit_s / max(1, sum(runs_here(templates, request.problem, device) for request in requests))


def announced(limit_s: float, requests: Sequence[Request], templates: Sequence[Template], device: DeviceInfo) -> str:
    """How many problems there are, and what the time of each comes to."""
    from gemmsweep.errors import counted
    from gemmsweep.report.figures import duration

    problems = counted(len(requests), "problem")
    unable = sum(not runs_here(templates, request.problem, device) for request in requests)
    if unable == len(requests):
        return f"{problems}, no family can run {'it' if unable == 1 else 'any'}"
    each = f"{problems}, about {duration(each_share_s(limit_s, requests, templates, device))} each"
    return f"{each} but for {unable} that no family can run" if unable else each


def print_plan(request: Request, templates: Sequence[Template], device: DeviceInfo, share_s: float) -> bool:
    """`--dry-run` for one problem; False where no family can run it."""
    from gemmsweep.cli.offline import config_text, say, too_large
    from gemmsweep.errors import UsageError
    from gemmsweep.plan import differences
    from gemmsweep.report.figures import duration
    from gemmsweep.tune import configs_that_fit

    problem = request.problem
    beyond = too_large(problem, device)
    fitting = configs_that_fit(share_s, request, device)
    lines, feasible = [], False
    for template in templates:
        try:
            start = start_here(template, problem, device)
        except UsageError as error:
            lines.append(f"  {template.name}: not here: {error}")
            continue
        feasible = True
        axes = [p for p in template.parameters if len(p.values) > 1]
        configs = sum(len(p.values) for p in axes)
        moved = config_text(differences(template.defaults(), start))
        where = f"from the best on record or {f'defaults but {moved}' if moved else 'defaults'}"
        passed = f"{len(axes)} {'axis' if len(axes) == 1 else 'axes'}, {configs} configs a pass, {where}"
        lines.append(f"  {template.name}: {passed if axes else 'nothing to vary'}")
    gpu = "" if device.kind == "cuda" else " For a GPU: --arch sm_90a."
    reach = f"{duration(share_s)}, time for about {fitting} configs" if feasible else f"no family can run it.{gpu}"
    told = [beyond] if beyond else []
    for line in (f"{problem} on {device.name} ({device.arch}): {reach}", *told, *lines):
        say(line)
    return feasible
