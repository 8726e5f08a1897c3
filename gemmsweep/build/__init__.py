"""Source → binary, no GPU needed: `build_all` and `build_one` are the entry; `describe` is for `gemmsweep doctor`."""

from gemmsweep.build.describe import describe
from gemmsweep.build.log import findings
from gemmsweep.build.pool import Builders, build_all, build_one

__all__ = ["Builders", "build_all", "build_one", "describe", "findings"]
