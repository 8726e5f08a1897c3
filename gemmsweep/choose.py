"""What the user left open: template, dtype, layout and shape, chosen by stated rules."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from gemmsweep.analysis.account import arch_number
from gemmsweep.entry import backend_of, enlist
from gemmsweep.errors import UsageError, did_you_mean
from gemmsweep.model import DeviceInfo, Problem
from gemmsweep.template.declaration import Template
from gemmsweep.template.library import list_templates

if TYPE_CHECKING:
    from gemmsweep.store import Store

DEFAULT_SIZE = {"cuda": 4096, "cpu": 1024}  # m = n = k: large enough to be about the kernel, small enough to wait for
FEW_ROWS = (64, 16, 4, 1)
DEFAULT_DTYPE = "fp32"


def templates_here(device: DeviceInfo) -> list[Template]:
    """The shipped templates that a device can run, by name."""
    backend = backend_of(device)
    return [t for t in list_templates().templates if t.backend == backend and t.target(device.arch) is not None]


def require_templates_here(device: DeviceInfo) -> list[Template]:
    """Likewise; raises UsageError where there is none."""
    here = templates_here(device)
    if not here:
        raise UsageError(f"no template runs on {device.name} ({device.arch}). Give your own: --template k.cu")
    return here


def choose_template(
    here: Sequence[Template], device: DeviceInfo, axes: Sequence[str], dtype: str | None, layout: str | None
) -> Template:
    """The template with the most parameters among those that run `here` and have every axis asked for.

    Parameters are a fair measure of how far a kernel is developed, so this takes `mma` before `naive`. Raises UsageError.
    """
    wanted = dtype or DEFAULT_DTYPE
    typed = [t for t in here if wanted in t.dtypes and (layout is None or layout in t.layouts)]
    if not typed:
        have = ", ".join(sorted({f"{name} {way}" for t in here for name in t.dtypes for way in t.layouts}))
        raise UsageError(
            f"no template for {device.name} takes {' '.join(filter(None, (wanted, layout)))}. There are: {have}."
        )
    fitting = [t for t in typed if set(axes) <= {p.name for p in t.parameters}]
    if not fitting:
        listed = "; ".join(f"{t.name}: {', '.join(p.name for p in t.parameters)}" for t in typed)
        names = sorted({p.name for t in typed for p in t.parameters})
        meant = "".join(did_you_mean(axis, names) for axis in axes if axis not in names)
        raise UsageError(
            f"no {wanted} template for {device.name} has all of: {', '.join(axes)}.{meant} There are: {listed}."
        )
    return max(fitting, key=lambda t: (len(t.parameters), t.name))


def template_on_record(
    store: Store, here: Sequence[Template], device: DeviceInfo, problem: Problem, parameters: Collection[str]
) -> Template | None:
    """The family of what `export-best` names for exactly this problem; None where that lacks a parameter asked for."""
    named = {template.name: template for template in here}
    for like in devices_like(store, device):
        best = next((known for known in store.known(problem, like.device_class) if known.exported), None)
        template = named.get(best.template) if best is not None else None
        if template is not None and set(parameters) <= {p.name for p in template.parameters}:
            return template
    return None


def devices_like(store: Store, device: DeviceInfo) -> list[DeviceInfo]:
    """Whose record counts for a device: its own; of a card typical of its architecture, which has none, that of real ones."""
    if device.uuid:
        return [device]
    return [gpu for gpu in store.gpus() if arch_number(gpu.arch) == arch_number(device.arch)]


def default_shape(template: Template, device: DeviceInfo, dtype: str, layout: str) -> tuple[int, int, int]:
    """A cube; for a kernel that takes few rows, as many as its defaults take."""
    size = DEFAULT_SIZE[backend_of(device)]
    for m in (size, *FEW_ROWS):
        (candidate,) = enlist(template, Problem.of(m, size, size, dtype, layout), device, {"": template.defaults()})
        if candidate.alive:
            return m, size, size
    return size, size, size
