"""Which tile, warp and lane an element of C belongs to, as far as a template's header says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemmsweep.model import Launch
from gemmsweep.template.declaration import Template
from gemmsweep.template.expressions import Expression, ExpressionError
from gemmsweep.template.resolve import Resolved

WARP = 32


@dataclass(frozen=True, slots=True)
class Place:
    """None: the header does not say."""

    tile: tuple[int, int] | None = None  # block tile of C: down, across
    row: int | None = None  # within the block tile
    column: int | None = None
    warp: int | None = None
    lane: int | None = None


def place(template: Template, resolved: Resolved, launch: Launch, row: int, column: int) -> Place:
    """Where element (row, column) of C is computed; tiles are BM x BN where the header has such names."""
    env = resolved.env
    if min(block_tile(env)) < 1:
        return Place()
    tile, inside = (row // env["BM"], column // env["BN"]), (row % env["BM"], column % env["BN"])
    account = template.account
    if account.warp is not None or account.lane is not None:
        return Place(tile, *inside, told(account.warp, resolved, inside), told(account.lane, resolved, inside))
    warp = usual_warp(resolved, launch, inside)
    lane = fragment_lane(*inside) if warp is not None and account.unit == "tensor" else None
    return Place(tile, *inside, warp, lane)


def block_tile(env: Mapping[str, int]) -> tuple[int, int]:
    """Rows and columns of a block tile; (0, 0) where the header has no such names, or they are no sizes."""
    rows, columns = env.get("BM", 0), env.get("BN", 0)
    return (rows, columns) if min(rows, columns) > 0 else (0, 0)


def told(expression: Expression | None, resolved: Resolved, inside: tuple[int, int]) -> int | None:
    """What the header's expression says of an element of the block tile."""
    if expression is None:
        return None
    try:
        return int(expression.evaluate({**resolved.env, "row": inside[0], "column": inside[1]}))
    except ExpressionError:
        return None


def usual_warp(resolved: Resolved, launch: Launch, inside: tuple[int, int]) -> int | None:
    """Warp tiles of WM x WN, numbered along the rows: true where they and the threads of a block add up."""
    env = resolved.env
    names = ("BM", "BN", "WM", "WN")
    if any(env.get(name, 0) < 1 for name in names):
        return None
    bm, bn, wm, wn = (env[name] for name in names)
    threads = launch.main.block[0] * launch.main.block[1] * launch.main.block[2]
    if bm % wm or bn % wn or threads != WARP * (bm // wm) * (bn // wn):
        return None
    return inside[0] // wm * (bn // wn) + inside[1] // wn


def fragment_lane(row: int, column: int) -> int:
    """Accumulators of mma.m16n8: a lane holds two neighbours in row lane / 4, and two in the eighth row below."""
    return row % 8 * 4 + column % 8 // 2
