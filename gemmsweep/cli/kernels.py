"""Kernels as they leave gemmsweep: from a stored run to a source that stands alone and the launch that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gemmsweep.errors import NothingToShow

if TYPE_CHECKING:
    from gemmsweep.report.export.directory import ExportedKernel
    from gemmsweep.store import Store


def exported_kernel(store: Store, record: Mapping[str, Any]) -> ExportedKernel:
    """The stored source of a run, includes in it, and its launch; raises NothingToShow where it was left out of a merge."""
    from gemmsweep.report.export.directory import ExportedKernel

    detail = store.run_detail(record["run_id"])
    if detail["rendered_source"] is None or detail["launch"] is None:
        raise NothingToShow(
            f"run {record['run_id'][-8:]} has no source on record (merged without sources): measure it here."
        )
    return ExportedKernel(detail["rendered_source"], {"build_arch": detail["build_arch"], **detail["launch"]})
