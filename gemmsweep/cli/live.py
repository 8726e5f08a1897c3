"""What a person sees while `run` works (stderr) and when it is done (stdout)."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gemmsweep.cli.streams import silence
from gemmsweep.report.progress import Progress

if TYPE_CHECKING:
    from gemmsweep.model import DeviceInfo
    from gemmsweep.session import Request
    from gemmsweep.store import Filter, Store, StoredSession


# What a stage is called on the screen; the number of its steps follows.
STAGES = {
    "build": "building",
    "prepare": "data and reference",
    "check": "checking",
    "race": "racing, rounds at most",
    "counters": "verifying again, counters of",
}


class Screen:
    """The `Watch` of a session, over report's progress bar."""

    def __init__(self) -> None:
        self._progress = Progress()
        self._done = 0
        self._unwritten: OSError | None = None

    def __enter__(self) -> Screen:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        if kind is None and self._unwritten is not None:
            raise self._unwritten

    def stage(self, name: str, total: int) -> None:
        self._done = 0
        self._progress.stage(STAGES.get(name, name), total)

    def advance(self, detail: str = "") -> None:
        self._done += 1
        self._progress.update(self._done, detail)

    def note(self, text: str) -> None:
        self._progress.message(text)

    def opening(self, path: Path, device: DeviceInfo, requests: Sequence[Request]) -> None:
        """Which device and database; what each problem will cost."""
        from gemmsweep.estimate import run_seconds
        from gemmsweep.finals import beyond_equal_clock_s
        from gemmsweep.plan import axis_values, summary, undeclared_of_range
        from gemmsweep.report.figures import duration

        self.note(f"{device.name} ({device.arch}), results in {path}")
        total_s = 0.0
        for request in requests:
            counts = [(a.name, len(axis_values(request.template, a))) for a in request.axes]
            cost_s = run_seconds(request.problem, device, sum(n for _, n in counts) or 1)
            cost_s += beyond_equal_clock_s(request, device)
            total_s += cost_s
            what = summary(counts) if counts else "the start config"
            self.note(f"{request.template.name} {request.problem}: {what}, about {duration(cost_s)}")
            for axis in request.axes:
                if left_out := undeclared_of_range(request.template, axis):
                    self.note(left_out)
        self._progress.expect(total_s)

    def on_record(self, store: Store, stored: StoredSession) -> None:
        """A request that was answered before: its tables and their date."""
        self.note(f"On record since {stored.started_at[:16].replace('T', ' ')} UTC; --remeasure races again.")
        for sweep in stored.sweeps:
            self.sweep_done(store, sweep.key)

    def sweep_done(self, store: Store, key: int) -> None:
        """One sweep's table on stdout, as soon as it is finished."""
        from gemmsweep.report import formats
        from gemmsweep.store import Filter

        wanted = Filter(sweep=store.sweep_id(key))
        self._progress.pause()
        width = shutil.get_terminal_size((80, 24)).columns
        try:
            formats.write("table", store.sweeps(wanted), store.runs(wanted), sys.stdout, None, width)
            sys.stdout.write("\n")
            sys.stdout.flush()
        except OSError as error:  # its disk is full, say: that does not end the measuring, and is told when it is done
            self._unwritten = error
            silence(sys.stdout)

    def closing(self, store: Store, wanted: Filter, request: Request, device: DeviceInfo) -> bool:
        """What to do next; True where the session holds a verified run: of its finals, if it came to any."""
        verified = replace(wanted, status="ok")
        builds = store.any_runs(replace(verified, template=request.template.name))
        axis = next_axis(store, request, device) if builds else None
        if axis is not None:
            self.note(f"Next axis worth varying: {command_for(request, axis)}")
        finals = replace(wanted, kind="finals")
        return store.any_runs(replace(verified, kind="finals") if store.any_runs(finals) else verified)


def command_for(request: Request, axis: str) -> str:
    """The line that varies `axis` of the same kernel on the same problem."""
    from gemmsweep.cli.request import asked_again
    from gemmsweep.template.locations import templates_folder

    template = request.template
    named = template.name if template.path.parent == templates_folder() else str(template.path)
    words = ["gemmsweep", "run", "--template", named, *asked_again(template, request.problem)]
    words += ["--compiler", request.compiler] if request.compiler != "auto" else []
    words += ["--l2", request.l2] if request.l2 != "cold" else []
    return shlex.join([*words, "--vary", axis])


def next_axis(store: Store, request: Request, device: DeviceInfo) -> str | None:
    """The first parameter in the header's order, with a choice of values, that no sweep here brought to a verdict."""
    from gemmsweep.store import Filter

    problem = request.problem
    near = Filter(template=request.template.name, shape=(problem.shape,), dtype=problem.dtype, kind="axis")
    varied = {
        sweep.start.varied
        for sweep in store.stored_sweeps(near)
        if (sweep.start.problem, sweep.start.l2) == (problem, request.l2)
        and sweep.environment.device.device_class == device.device_class
        and sweep.outcome is not None
        and sweep.outcome.verdict != "none"
    }
    return next((p.name for p in request.template.parameters if len(p.values) > 1 and p.name not in varied), None)
