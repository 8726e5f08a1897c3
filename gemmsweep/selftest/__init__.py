"""Races whose right answer is known, on the user's own machine: identical labels, and labels slower by an exact amount.

Six names of one loaded kernel race each other and the vendor library. A name slowed by 1% launches 101 times and reports 100.
Every sweep is stored under the experiment of its kind, so that counts grow from command to command.
"""

from gemmsweep.selftest.kinds import KINDS, Bed, Kind, default_problems
from gemmsweep.selftest.races import on_record, run
from gemmsweep.selftest.summary import Record, Summary, collect, summarize

__all__ = ["KINDS", "Bed", "Kind", "Record", "Summary", "collect", "default_problems", "on_record", "run", "summarize"]
