"""One config of a template on one problem: the values of all its names, and how it is launched."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gemmsweep.errors import ProblemError, TemplateError
from gemmsweep.model import Accuracy, Config, DeviceInfo, Launch, Problem, Step, TensorMap, Workspace
from gemmsweep.template.declaration import (
    DEVICE_NAMES,
    Argument,
    DeclaredAccuracy,
    DeclaredStep,
    DeclaredTensorMap,
    DeclaredWorkspace,
    Template,
    arch_number,
)
from gemmsweep.template.expressions import Expression, ExpressionError

Conditional = TypeVar("Conditional", DeclaredStep, DeclaredWorkspace, DeclaredTensorMap, DeclaredAccuracy)


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

    def holds(self, when: Expression | None) -> bool:
        """Whether what is declared with `when` is there. Raises ExpressionError like `value`."""
        return when is None or bool(self.value(when))

    def present(self, declared: Iterable[Conditional]) -> list[Conditional]:
        """Those that are there."""
        return [item for item in declared if self.holds(item.when)]


def device_env(info: DeviceInfo) -> dict[str, int]:
    """The device's names in expressions."""
    if info.kind == "cpu":
        return {"cores": info.sm_count}
    return {
        "max_smem_bytes": info.max_smem_bytes,
        "sm_count": info.sm_count,
        "compute_capability": arch_number(info.arch),
    }


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
    workspaces, tensor_maps = resolved.present(template.workspaces), resolved.present(template.tensor_maps)
    there = {f"workspace:{item.name}" for item in workspaces} | {f"tensor_map:{item.name}" for item in tensor_maps}
    return Launch(
        steps=tuple(_step(template, resolved, step, there) for step in resolved.present(template.steps)),
        workspaces=tuple(Workspace(item.name, resolved.value(item.bytes), item.zero) for item in workspaces),
        tensor_maps=tuple(_tensor_map(resolved, item) for item in tensor_maps),
        deterministic=_is_deterministic(template, resolved),
        reads_c=template.reads_c,
        threads=resolved.env.get("THREADS", 1) if template.backend == "cpu" else 1,
        accuracy=_accuracy(template, resolved),
    )


def _is_deterministic(template: Template, resolved: Resolved) -> bool:
    declared = template.deterministic
    return declared if isinstance(declared, bool) else resolved.holds(declared)


def kernel_name(template: Template, kernel: str, env: Mapping[str, int]) -> str:
    """The kernel as the build asks for it: for bind = "template", with the parameters' values in its arguments."""
    if template.kernel.bind != "template":
        return kernel
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda match: str(env.get(match[0], match[0])), kernel)


def _extents(values: list[int]) -> tuple[int, int, int]:
    """Three extents, those left out being 1."""
    x, y, z = (*values, 1, 1, 1)[:3]
    return x, y, z


def _step(template: Template, resolved: Resolved, step: DeclaredStep, there: Collection[str]) -> Step:
    value = resolved.value
    return Step(
        kernel=kernel_name(template, step.kernel, resolved.env),
        args=tuple(_argument(resolved, argument, there) for argument in step.args),
        grid=_extents([value(extent) for extent in step.grid]),
        block=_extents([value(extent) for extent in step.block]),
        smem_bytes=0 if step.smem_bytes is None else value(step.smem_bytes),
    )


def _argument(resolved: Resolved, argument: Argument, there: Collection[str]) -> str:
    if argument.expression is not None:
        return f"{argument.word}:{resolved.value(argument.expression)}"
    if not argument.name:
        return argument.word
    word = f"{argument.word}:{argument.name}"
    absent = "null" if argument.word == "workspace" else "null_map"
    return word if word in there else absent


def _tensor_map(resolved: Resolved, declared: DeclaredTensorMap) -> TensorMap:
    value = resolved.value
    return TensorMap(
        declared.name,
        declared.operand,
        tuple(map(value, declared.box)),
        value(declared.swizzle),
        value(declared.promotion),
        tuple(map(value, declared.extent)),
        0 if declared.ld is None else value(declared.ld),
    )


def _accuracy(template: Template, resolved: Resolved) -> Accuracy:
    for declared in resolved.present(template.accuracies)[:1]:
        return Accuracy(declared.acc, resolved.value(declared.unit), resolved.value(declared.terms))
    return Accuracy()
