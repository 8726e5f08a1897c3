"""One config of a template on one problem: the values of all its names, and how it is launched."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gemmsweep.errors import ProblemError, TemplateError
from gemmsweep.model import Config, DeviceInfo, Launch, Problem, Step, TensorMap, Workspace
from gemmsweep.template.declaration import DEVICE_NAMES, Argument, DeclaredStep, Template
from gemmsweep.template.expressions import Expression, ExpressionError


@dataclass(frozen=True, slots=True)
class Resolved:
    """`env` has every name with a value; `failures` says, by derived name, why one has none."""

    problem: Problem
    config: Config
    env: Mapping[str, int]
    failures: Mapping[str, str]

    def value(self, expression: Expression) -> int:
        """Raises ExpressionError where the expression has no value."""
        return int(expression.evaluate(self.env))


def device_env(info: DeviceInfo) -> dict[str, int]:
    """The device's names in expressions."""
    if info.kind == "cpu":
        return {"cores": info.sm_count}
    return {"max_smem_bytes": info.max_smem_bytes, "sm_count": info.sm_count}


def parameter_env(template: Template, config: Config) -> dict[str, int]:
    """Parameters as numbers, and the names of enumerated values. Raises UsageError where the config does not fit."""
    for name in config:
        template.parameter(name)
    missing = [parameter.name for parameter in template.parameters if parameter.name not in config]
    if missing:
        raise TemplateError(
            f"the config of template {template.name!r} lacks {', '.join(missing)}. Give every parameter."
        )
    numbers = {parameter.name: parameter.number(config[parameter.name]) for parameter in template.parameters}
    return {**template.constants, **numbers}


def check_problem(template: Template, problem: Problem) -> None:
    """Raises ProblemError where no config of the template computes such a problem."""
    offers = (("dtype", problem.dtype, template.dtypes), ("layout", problem.layout, template.layouts))
    for kind, wanted, offered in offers:
        if wanted not in offered:
            raise ProblemError(f"template {template.name!r} has no {kind} {wanted!r}. It has: {', '.join(offered)}.")
    if problem.epilogue != "none" and not template.takes_epilogue:
        raise ProblemError(f"template {template.name!r} has no epilogue, so not {problem.epilogue!r}. Choose: none.")
    if problem.beta and not template.takes_beta:
        raise ProblemError(f"template {template.name!r} has no beta, so not {problem.beta}. Choose: 0.")


def resolve(template: Template, problem: Problem, device: Mapping[str, int], config: Config) -> Resolved:
    """Give every name its value; `device` is `device_env(…)`, or {} where no device is known.

    Raises UsageError for a config or problem that the template does not have. What cannot be computed is a failure,
    which `broken_rules` reports; what needs an unknown device is left out.
    """
    check_problem(template, problem)
    env = {**parameter_env(template, config), **problem_env(problem)}
    env.update((name, device[name]) for name in DEVICE_NAMES[template.backend] if name in device)
    failures: dict[str, str] = {}
    for name, expression in template.derived.items():
        if expression.names <= env.keys():
            try:
                env[name] = int(expression.evaluate(env))
            except ExpressionError as error:
                failures[name] = str(error)
    return Resolved(problem, config, env, failures)


def problem_env(problem: Problem) -> dict[str, int]:
    return {
        "M": problem.m,
        "N": problem.n,
        "K": problem.k,
        "lda": problem.lda,
        "ldb": problem.ldb,
        "ldc": problem.ldd,
        "sizeof_in": problem.sizeof_in,
        "sizeof_out": problem.sizeof_out,
        "is_nt": int(problem.layout == "nt"),
        **{f"is_{dtype}": int(problem.dtype == dtype) for dtype in ("fp32", "tf32", "fp16", "bf16")},
    }


def plan_launch(template: Template, resolved: Resolved) -> Launch:
    """Everything evaluated. Raises ExpressionError where something has no value (see `broken_rules`)."""
    value = resolved.value
    return Launch(
        steps=tuple(_step(template, resolved, step) for step in template.steps),
        workspaces=tuple(Workspace(item.name, value(item.bytes), item.zero) for item in template.workspaces),
        tensor_maps=tuple(
            TensorMap(item.name, item.operand, tuple(map(value, item.box)), value(item.swizzle), value(item.promotion))
            for item in template.tensor_maps
        ),
        deterministic=template.deterministic,
        reads_c=template.reads_c,
        threads=resolved.env.get("THREADS", 1) if template.backend == "cpu" else 1,
    )


def kernel_name(template: Template, kernel: str, env: Mapping[str, int]) -> str:
    """The kernel as the build asks for it: for bind = "template", with the parameters' values in its arguments."""
    if template.kernel.bind != "template":
        return kernel
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda match: str(env.get(match[0], match[0])), kernel)


def _extents(values: list[int]) -> tuple[int, int, int]:
    """Three extents, those left out being 1."""
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


def _step(template: Template, resolved: Resolved, step: DeclaredStep) -> Step:
    value = resolved.value
    return Step(
        kernel=kernel_name(template, step.kernel, resolved.env),
        args=tuple(_argument(resolved, argument) for argument in step.args),
        grid=_extents([value(extent) for extent in step.grid]),
        block=_extents([value(extent) for extent in step.block]),
        smem_bytes=0 if step.smem_bytes is None else value(step.smem_bytes),
    )


def _argument(resolved: Resolved, argument: Argument) -> str:
    if argument.expression is not None:
        return f"{argument.word}:{resolved.value(argument.expression)}"
    return f"{argument.word}:{argument.name}" if argument.name else argument.word
