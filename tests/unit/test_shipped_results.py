"""results.db of the repository: every kernel that `export-best` names can be exported, from the file alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemmsweep.store import Filter, open_store

SHIPPED = Path(__file__).parents[2] / "results.db"


@pytest.mark.skipif(not SHIPPED.exists(), reason="not a checkout")
def test_every_best_kernel_on_record_has_its_source() -> None:
    with open_store(SHIPPED, readonly=True) as store:
        best = list(store.best(Filter()))
        details = [store.run_detail(run["run_id"]) for run in best]
    assert best
    assert [d["run_id"] for d in details if not d["rendered_source"]] == []
