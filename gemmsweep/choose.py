"""What the user left open: template, dtype, layout and shape, chosen by stated rules."""

from __future__ import annotations

from collections.abc import Sequence

from gemmsweep.entry import backend_of
from gemmsweep.errors import UsageError
from gemmsweep.model import DeviceInfo
from gemmsweep.template.declaration import Template
from gemmsweep.template.library import list_templates

DEFAULT_SIZE = {"cuda": 4096, "cpu": 1024}  # m = n = k: large enough to be about the kernel, small enough to wait for
DEFAULT_DTYPE = "fp32"


def choose_template(device: DeviceInfo, axes: Sequence[str], dtype: str | None, layout: str | None) -> Template:
    """The template with the most parameters among those that run here and have every axis asked for.

    Parameters are a fair measure of how far a kernel is developed, so this takes `mma` before `naive`. Raises UsageError.
    """
    backend = backend_of(device)
    here = [t for t in list_templates().templates if t.backend == backend and t.target(device.arch) is not None]
    if not here:
        raise UsageError(f"no template runs on {device.name} ({device.arch}). Give your own: --template k.cu")
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
        raise UsageError(f"no {wanted} template for {device.name} has all of: {', '.join(axes)}. There are: {listed}.")
    return max(fitting, key=lambda t: (len(t.parameters), t.name))


def default_shape(device: DeviceInfo) -> tuple[int, int, int]:
    size = DEFAULT_SIZE[backend_of(device)]
    return size, size, size
