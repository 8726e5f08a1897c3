"""Kernels as they leave gemmsweep: from a stored run to a source that stands alone and all that its launch needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmsweep.errors import GemmsweepError, NothingToShow

if TYPE_CHECKING:
    from gemmsweep.model import Problem
    from gemmsweep.report.export.directory import ExportedKernel
    from gemmsweep.store import Store


def exported_kernel(store: Store, record: Mapping[str, Any]) -> ExportedKernel:
    """A run's source, includes in it, and its launch; raises NothingToShow where neither is to be had."""
    from gemmsweep.report.export.directory import ExportedKernel
    from gemmsweep.store import problem_of

    detail = stored_run(store, record["run_id"])
    problem = problem_of(detail["problem"])
    if detail["rendered_source"] is None or detail["launch"] is None:
        raise NothingToShow(
            f"run {record['run_id'][-8:]} ({record['template']} {problem}): its source is not on record, and no "
            f"shipped template renders to it. Take the results file from before it was left out, or measure it again."
        )
    build = {
        "compiler": detail["build"]["compiler"],
        **{name: detail[name] for name in ("build_arch", "build_options")},
    }
    launch = named(complete(detail["launch"], problem), detail["rendered_source"])
    return ExportedKernel(detail["rendered_source"], {**build, **launch})


def stored_run(store: Store, run: str) -> dict[str, Any]:
    """`Store.run_detail`; a source of which only the hash is on record comes from the template, if that still renders to it."""
    detail = dict(store.run_detail(run))
    if detail["rendered_source"] is None and detail["rendered_sha256"]:
        detail["rendered_source"] = rendered_again(detail)
    return detail


def rendered_again(detail: Mapping[str, Any]) -> str | None:
    """What the shipped template renders to; None where that has another hash than the run's source."""
    from dataclasses import replace

    from gemmsweep.analysis.account import offline_device
    from gemmsweep.device.machine import describe
    from gemmsweep.store import problem_of
    from gemmsweep.template import render
    from gemmsweep.template.library import find_template

    device = detail["device"]
    try:
        template = find_template(detail["template"])
        info = offline_device(device["arch"]) if template.backend == "cuda" else describe()
        env = render.device_env(replace(info, sm_count=device["sm_count"]))
        resolved = render.resolve(template, problem_of(detail["problem"]), env, detail["config"])
        if resolved.failures:
            return None  # the template has changed, or the config was: it never ran
        text = render.flatten(render.render(template, resolved))
    except GemmsweepError:
        return None
    return text if hashlib.sha256(text.encode()).hexdigest() == detail["rendered_sha256"] else None


def named(launch: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The launch with the source's own names of its arguments, None where it does not tell: a record holds values only."""
    from gemmsweep.template.kernels import parameter_names

    def names(step: Mapping[str, Any]) -> tuple[str, ...] | None:
        fitting = [one for one in parameter_names(source, step["kernel"]) if len(one) == len(step["args"]) and all(one)]
        return fitting[0] if len(fitting) == 1 else None

    return {**launch, "steps": [{**step, "arg_names": names(step)} for step in launch["steps"]]}


def complete(launch: Mapping[str, Any], problem: Problem) -> dict[str, Any]:
    """The launch with what the host fills in from the problem: tensor maps as TMA takes them, the epilogue's struct.

    Older files have no extent in their tensor maps, which are of operands.
    """
    from gemmsweep.device.cuda.launch import map_data_type, map_extent
    from gemmsweep.epilogue import parse_epilogue
    from gemmsweep.model import TensorMap

    maps = []
    for entry in launch["tensor_maps"]:
        wanted = TensorMap(
            entry["name"], entry["operand"], tuple(entry["box"]), entry["swizzle"], entry["promotion"],
            tuple(entry.get("extent", ())), entry.get("ld", 0),
        )  # fmt: skip
        columns, rows, leading, dtype = map_extent(wanted, problem)
        maps.append(
            {
                "name": wanted.name, "operand": wanted.operand, "data_type": map_data_type(dtype),
                "dims": [columns, rows], "row_bytes": leading * problem.sizeof_in, "box": list(wanted.box),
                "swizzle": wanted.swizzle, "promotion": wanted.promotion,
            }
        )  # fmt: skip
    chain = parse_epilogue(problem.epilogue)
    numbers = {name: chain.numbers.get(name, 0.0) for name in ("slope", "lo", "hi")}
    packed = chain.pack(1.0, problem.beta, 0)
    struct = {"alpha": 1.0, "beta": problem.beta, "bias": chain.bias_axis, **numbers, "bytes": packed.hex()}
    return {**launch, "tensor_maps": maps, "epilogue": struct}
