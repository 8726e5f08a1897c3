"""`gemmsweep verify`: is a template right where kernels go wrong? Many small problems, no race.

`cases.py` says which problems, `nearest.py` with which config, `line.py` builds and checks them and writes each down,
`place.py` says which tile, warp and lane an element belongs to.
"""

from gemmsweep.verify.cases import Case, Extent, asked, edge_cases, pairs
from gemmsweep.verify.line import Failure, Result, Work, verify
from gemmsweep.verify.nearest import Nearest

__all__ = ["Case", "Extent", "Failure", "Nearest", "Result", "Work", "asked", "edge_cases", "pairs", "verify"]
