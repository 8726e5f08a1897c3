"""Which problems and configs a verification goes through: shapes at edges, leading dimensions, beta, epilogues, axes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gemmsweep.entry import Candidate, enlist
from gemmsweep.epilogue import CHECKED
from gemmsweep.feasible import declared_starts
from gemmsweep.model import Config, DeviceInfo, Problem
from gemmsweep.plan import differences
from gemmsweep.template import render
from gemmsweep.template.declaration import TYPE_NAMES, Template
from gemmsweep.template.expressions import Expression, ExpressionError
from gemmsweep.template.resolve import problem_env
from gemmsweep.verify.nearest import Nearest

Shape = tuple[int, int, int]

EDGE: Shape = (130, 66, 17)
AWKWARD: Shape = (259, 131, 197)  # several tiles and slabs, every one of them ragged: where the axes are tried
ALIGNED: Shape = (259, 136, 200)  # likewise, in rows of whole 16 bytes: for defaults that ask for such
ONES: Shape = (1, 1, 1)
RAGGED: tuple[Shape, ...] = (
    (1031, 521, 131),  # primes, and enough tiles for any rasterisation
    (1, 97, 131),
    (131, 1, 97),
    (67, 61, 1),
    (33, 29, 16411),  # long K
)
STARTS: tuple[Shape, ...] = (  # many rows, few, a long K, a short one: where AWKWARD is none of these
    (1031, 521, 131),
    (1031, 520, 136),
    (61, 131, 197),
    (61, 136, 200),
    (33, 29, 16411),
    (33, 32, 16416),
    (130, 66, 17),
)
SPECIAL: tuple[Shape, ...] = (EDGE, (66, 34, 2051))
QUICK_EPILOGUES = ("bias+leaky_relu",)
EPILOGUES = (*CHECKED, *QUICK_EPILOGUES)
FEWER_ROWS = (127, 64, 16, 3, 4, 1)  # for kernels that take few: the first that fits
DEFAULTS = "defaults"
MOST_TILE = 1 << 14  # a BM beyond it is no side of a tile


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is asked for. Empty: everything the template offers."""

    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    epilogues: tuple[str, ...] = ()
    quick: bool = False
    special_values: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One problem and its configs by label; `special`: on operands at the edges of their formats as well."""

    problem: Problem
    candidates: tuple[Candidate, ...]
    special: bool = False


def asked(
    template: Template, device: DeviceInfo, problem: Problem, config: Config, *, special_values: bool = False
) -> Case:
    """Exactly this problem with one config. A broken rule is a candidate that is not alive."""
    return Case(problem, tuple(enlist(template, problem, device, {named(template, config): config})), special_values)


def named(template: Template, config: Config) -> str:
    """`BK=32 PAD=4`: what differs from the defaults."""
    return " ".join(f"{name}={value}" for name, value in differences(template.defaults(), config).items()) or DEFAULTS


def edge_cases(template: Template, device: DeviceInfo, extent: Extent) -> list[Case]:
    """The cases of a template, the smallest first; each problem once, every config of it feasible."""
    configs: dict[Problem, dict[str, Config]] = {}
    special: set[Problem] = set()
    nearest = Nearest(template, device)
    tried: list[Config] = []

    def add(problem: Problem, *wanted: Config) -> None:
        configs.setdefault(problem, {}).update({named(template, config): config for config in wanted})

    for index, (dtype, layout) in enumerate(pairs(template, extent)):
        for problem, config in problems_of(nearest, dtype, layout, extent).items():
            add(problem, config)
        if not (extent.quick and index):
            for problem, config in where_axes_are_tried(nearest, dtype, layout).items():
                add(problem, config, *axis_configs(template, config))
        for problem, starts in where_starts_are_tried(nearest, dtype, layout, tried if extent.quick else []).items():
            add(problem, *starts)
        for shape in SPECIAL if extent.special_values else ():
            if found := admitted(nearest, Problem.of(*shape, dtype, layout)):
                add(*found)
                special.add(found[0])
    cases = []
    for problem, labelled in configs.items():
        alive = tuple(c for c in enlist(template, problem, device, labelled) if c.alive)
        if alive:
            cases.append(Case(problem, alive, problem in special))
    return cases


def where_axes_are_tried(nearest: Nearest, dtype: str, layout: str) -> dict[Problem, Config]:
    """Ragged tiles and the config there: at AWKWARD the nearest to the defaults, at ALIGNED too where that is another."""
    first = admitted(nearest, Problem.of(*AWKWARD, dtype, layout))
    found = {} if first is None else {first[0]: first[1]}
    if first is None or first[1] != nearest.template.defaults():
        second = admitted(nearest, Problem.of(*ALIGNED, dtype, layout))
        if second is not None and second[1] == nearest.template.defaults():
            found[second[0]] = second[1]
    return found


def where_starts_are_tried(
    nearest: Nearest, dtype: str, layout: str, tried: list[Config]
) -> dict[Problem, list[Config]]:
    """The starts that the header proposes and that are not `tried`, each at the first ragged shape that takes it."""
    found: dict[Problem, list[Config]] = {}
    for shape in (AWKWARD, ALIGNED, *STARTS):
        at = admitted(nearest, Problem.of(*shape, dtype, layout))
        for config in [] if at is None else declared_starts(nearest.template, at[0], nearest.device):
            if at is not None and config not in tried:
                tried.append(config)
                found.setdefault(at[0], []).append(config)
    return found


def pairs(template: Template, extent: Extent) -> Iterator[tuple[str, str]]:
    """(dtype, layout) that the template offers and the extent leaves; those that a rule on types excludes are not offered."""
    for dtype in template.dtypes:
        for layout in template.layouts:
            wanted = dtype in (extent.dtypes or (dtype,)) and layout in (extent.layouts or (layout,))
            if wanted and computes(template, dtype, layout):
                yield dtype, layout


def computes(template: Template, dtype: str, layout: str) -> bool:
    """Whether no rule that looks at types alone excludes this pair, as "no transposed form of tf32" does."""
    types = {
        name: value for name, value in problem_env(Problem.of(1, 1, 1, dtype, layout)).items() if name in TYPE_NAMES
    }
    rules = (rule.expression for rule in template.constraints)
    return all(holds(rule, types) for rule in rules if rule.names and rule.names <= types.keys())


def holds(rule: Expression, env: Mapping[str, int]) -> bool:
    """A rule that has no value is broken, as everywhere."""
    try:
        return bool(rule.evaluate(env))
    except ExpressionError:
        return False


def problems_of(nearest: Nearest, dtype: str, layout: str, extent: Extent) -> dict[Problem, Config]:
    """Shapes, then at one shape leading dimensions, beta and epilogues, each with its config; what no config takes falls out."""
    template = nearest.template
    tile = block_tile(template, nearest.device, dtype, layout)
    shapes = [tile, ONES, EDGE, moved(tile, 1), moved(tile, -1), *(() if extent.quick else RAGGED)]
    wanted = [Problem.of(*shape, dtype, layout) for shape in shapes]
    edge = Problem.of(*EDGE, dtype, layout)
    odd, wide = odd_strides(edge), wide_strides(edge)
    wanted += [odd] if extent.quick else [odd, wide]
    if template.takes_beta:
        wanted += [replace(odd, beta=0.5)] if extent.quick else [replace(odd, beta=0.5), replace(edge, beta=-1.0)]
    if template.takes_epilogue:
        chains = extent.epilogues or (QUICK_EPILOGUES if extent.quick else EPILOGUES)
        wanted += [replace(edge, epilogue=chain) for chain in chains]
        wanted += [replace(odd, epilogue=chains[-1], beta=0.5)]
    return dict(found for problem in wanted if (found := admitted(nearest, problem)) is not None)


def moved(shape: Shape, by: int) -> Shape:
    m, n, k = (max(size + by, 1) for size in shape)
    return m, n, k


def block_tile(template: Template, device: DeviceInfo, dtype: str, layout: str) -> Shape:
    """BM, BN and BK of the defaults, or what stands in for one that the template has not."""
    problem = Problem.of(*EDGE, dtype, layout)
    env = render.resolve(template, problem, render.device_env(device), template.defaults()).env
    usual = (("BM", 64), ("BN", 64), ("BK", 16))
    found = ((env.get(name, size), size) for name, size in usual)
    m, n, k = (value if 0 < value <= MOST_TILE else size for value, size in found)
    return m, n, k


def admitted(nearest: Nearest, problem: Problem) -> tuple[Problem, Config] | None:
    """The problem, or the nearest like it that a config takes: fewer rows, aligned strides, whole tiles; and that config."""
    fewer = (replace(problem, m=rows) for rows in FEWER_ROWS if rows < problem.m)
    for candidate in (problem, *fewer):
        for variant in (candidate, wide_strides(candidate)):
            if (config := nearest(variant)) is not None:
                return variant, config
    tile = block_tile(nearest.template, nearest.device, problem.dtype, problem.layout)
    m, n, k = (-(-size // x) * x for size, x in zip((problem.m, problem.n, problem.k), tile, strict=True))
    whole = Problem.of(m, n, k, problem.dtype, problem.layout, beta=problem.beta, epilogue=problem.epilogue)
    config = nearest(whole)
    return None if config is None else (whole, config)


def odd_strides(problem: Problem) -> Problem:
    """Leading dimensions that are odd and wider than a row: no two rows begin at the same alignment."""
    lda, ldb, ldd = (size + 1 + size % 2 for size in problem.tight.values())
    return replace(problem, lda=lda + 2, ldb=ldb + 4, ldd=ldd + 6)


def wide_strides(problem: Problem) -> Problem:
    """Leading dimensions wider than a row, every row at a multiple of 128 bytes."""
    lda, ldb, ldd = (-(-size // 64) * 64 + 64 for size in problem.tight.values())
    return replace(problem, lda=lda, ldb=ldb, ldd=ldd)


def axis_configs(template: Template, start: Config) -> list[Config]:
    """Every declared value of every parameter, the others as in `start`."""
    return [{**start, p.name: value} for p in template.parameters for value in p.values if value != start[p.name]]
