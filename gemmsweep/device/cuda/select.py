"""Which GPU a spec means, and what is known of it. CUDA and NVML number GPUs differently, so they meet by UUID."""

from __future__ import annotations

import os
import uuid as uuids
from typing import Any

from gemmsweep.counters.gpus import facts_of
from gemmsweep.errors import EnvironmentProblem, UsageError
from gemmsweep.model import DeviceInfo
from gemmsweep.protocol import DeviceSpec

INSTALL = "Install it: pip install 'gemmsweep[cuda13]' (driver 580 or later) or 'gemmsweep[cuda12]'"


def bare(uuid: str) -> str:
    """A UUID without its GPU- or MIG- prefix, in lower case."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")


def visible_uuids() -> list[str]:
    """UUIDs, without prefix, of the GPUs CUDA shows this process, in CUDA's order. Raises EnvironmentProblem."""
    try:
        import cupy
        from cuda.bindings import driver  # noqa: F401  (missing: say so here, not in the middle of a sweep)
    except ImportError as error:
        raise EnvironmentProblem(f"a GPU needs CuPy and cuda-bindings ({error}). {INSTALL}.") from error
    runtime = cupy.cuda.runtime
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise EnvironmentProblem(f"CUDA finds no GPU ({error}). See: gemmsweep doctor") from error
    return [uuid_of(index) for index in range(count)]


def uuid_of(index: int) -> str:
    """The UUID, without prefix, of a visible GPU. CuPy's device properties cut it off at a zero byte, so ask the driver."""
    from cuda.bindings import driver

    _, device = driver.cuDeviceGet(index)
    _, uuid = driver.cuDeviceGetUuid(device)
    return str(uuids.UUID(bytes=bytes(uuid.bytes)))


def select(spec: DeviceSpec) -> int:
    """CUDA index of the GPU a spec names. Raises UsageError or EnvironmentProblem."""
    if spec.uuid.startswith("MIG-") and "CUDA_VISIBLE_DEVICES" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = spec.uuid  # a process sees one MIG slice, the one it names before starting
    seen = visible_uuids()
    if not spec.uuid:
        if spec.index < len(seen):
            return spec.index
        raise UsageError(f"no device cuda:{spec.index}: CUDA shows {len(seen)}. See: gemmsweep doctor")
    if bare(spec.uuid) in seen:
        return seen.index(bare(spec.uuid))
    mask = os.environ.get("CUDA_VISIBLE_DEVICES")
    where = "" if mask is None else f" with CUDA_VISIBLE_DEVICES={mask}"
    raise UsageError(f"CUDA does not show the GPU {spec.uuid}{where}. It shows: {', '.join(seen) or 'none'}.")


def describe(index: int) -> DeviceInfo:
    """Everything known of a visible GPU. What NVML cannot read is None."""
    import cupy

    runtime = cupy.cuda.runtime
    properties: dict[str, Any] = runtime.getDeviceProperties(index)
    facts = facts_of(uuid_of(index))
    version = runtime.runtimeGetVersion()
    name, _, mig = properties["name"].decode().partition(" MIG ")
    return DeviceInfo(
        kind="cuda",
        name=name,
        uuid=facts.uuid,
        arch=f"sm_{properties['major']}{properties['minor']}",
        sm_count=int(properties["multiProcessorCount"]),
        memory_bytes=int(properties["totalGlobalMem"]),
        l2_bytes=int(properties["l2CacheSize"]),
        max_smem_bytes=int(properties["sharedMemPerBlockOptin"]),
        clock_max_mhz=facts.clock_max_mhz,
        power_limit_w=None if facts.power_limit_mw is None else facts.power_limit_mw / 1000,
        mig=mig or None,
        driver=facts.driver,
        runtime=f"CUDA {version // 1000}.{version // 10 % 100}",
        index=index,
    )
