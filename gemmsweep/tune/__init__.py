"""`gemmsweep tune`: for each problem every family that can run it, axis by axis, within a time limit."""

from gemmsweep.tune.answer import Answer, answer_of, on_record
from gemmsweep.tune.budget import QUICK_S, config_limit_s, configs_that_fit, share
from gemmsweep.tune.search import run

__all__ = [
    "QUICK_S",
    "Answer",
    "answer_of",
    "config_limit_s",
    "configs_that_fit",
    "on_record",
    "run",
    "share",
]
