"""The lab book: every run, good or bad, in one SQLite file."""

from gemmsweep.store.connect import identity_of
from gemmsweep.store.filters import Filter
from gemmsweep.store.merge import merge
from gemmsweep.store.records import KnownConfig, StoredSession, StoredSweep
from gemmsweep.store.runs import Store, open_store
from gemmsweep.store.sessions import problem_of

__all__ = [
    "Filter",
    "KnownConfig",
    "Store",
    "StoredSession",
    "StoredSweep",
    "identity_of",
    "merge",
    "open_store",
    "problem_of",
]
