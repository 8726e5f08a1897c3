"""NVML readings against a fake pynvml whose fields fail one by one: a failure is None and never loses the rest."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gemmsweep import blocks
from gemmsweep.counters import gpm, gpus, nvml
from gemmsweep.counters.capabilities import capabilities
from gemmsweep.counters.foreign import Foreign
from gemmsweep.counters.gpm import Load
from gemmsweep.counters.nvml import Nvml
from gemmsweep.protocol import Burst, Counter

UUID = "GPU-11111111-0000-0000-0000-000000000000"
METRIC_IDS = {metric: 1 + place for place, (metric, _) in enumerate(gpm.METRICS.values())}


class FakeMetric(ctypes.Structure):
    _fields_ = [("metricId", ctypes.c_uint), ("nvmlReturn", ctypes.c_uint), ("value", ctypes.c_double)]


class FakeRequest(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("numMetrics", ctypes.c_uint),
        ("sample1", ctypes.c_int),
        ("sample2", ctypes.c_int),
        ("metrics", FakeMetric * 16),
    ]


class FakeNvml:
    """Two cards whose NVML order is not CUDA's; `broken` names calls that raise."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_SUCCESS, NVML_GPM_METRICS_GET_VERSION = 1, 2, 0, 0, 1
    c_nvmlGpmMetricsGet_t = FakeRequest  # noqa: N815

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.cards = ["GPU-00000000-0000-0000-0000-00000000000f", UUID]
        self.pids: list[int] = []
        self.busy = 0
        self.loads: dict[int, int] | None = {}  # by process; None: this NVML does not tell
        self.samples: list[float] = []
        self.spans: list[tuple[float, float]] = []  # between the snapshots that metrics were asked of
        self.refresh_s, self.lag_s = 0.1, 0.06  # of snapshots: at the worst 0.16 s old
        self.codes: dict[str, int] = {}
        self.values: dict[str, float] = {}
        self.answers: dict[str, Any] = {
            "nvmlInit": None,
            "nvmlSystemGetDriverVersion": b"580.159.04",
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetName": "NVIDIA H200",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=1 << 37, used=1 << 30),
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceIsMigDeviceHandle": 0,
            "nvmlDeviceGetMaxMigDeviceCount": 0,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetPowerUsage": 689049,
            "nvmlDeviceGetTemperature": 55,
            "nvmlDeviceGetCurrentClocksEventReasons": 4,
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
            "nvmlGpmSampleFree": None,
        }
        for metric, number in METRIC_IDS.items():
            setattr(self, metric, number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (name not in self.answers and f"_{name}" not in dir(type(self))):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name in self.broken:
                raise RuntimeError(f"{name}: Unknown Error")
            special = getattr(type(self), f"_{name}", None)
            return special(self, *arguments) if special else self.answers[name]

        return call

    def _nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return self.cards.index(uuid)

    def _nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def _nvmlDeviceGetIndex(self, handle: int) -> int:
        return handle

    def _nvmlDeviceGetUUID(self, handle: int) -> str:
        return self.cards[handle]

    def _nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1515, 2: 3201}[kind] if handle == 1 else 345

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return int(time.monotonic() * 500e3)  # 500 W

    def _nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self.busy, memory=0)

    def _nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> Any:
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def _nvmlDeviceGetProcessUtilization(self, handle: int, since_us: int) -> Any:
        if self.loads is None:
            raise RuntimeError("Not Supported")
        if not self.loads:
            error = RuntimeError("Not Found")
            error.value = 6  # type: ignore[attr-defined]
            raise error
        return [SimpleNamespace(pid=p, smUtil=load, timeStamp=since_us + 1) for p, load in self.loads.items()]

    def _nvmlGpmSampleAlloc(self) -> int:
        self.samples.append(0.0)
        return len(self.samples) - 1

    def _nvmlGpmSampleGet(self, handle: int, sample: int) -> int:
        """The latest snapshot: when it was taken."""
        now = time.monotonic()
        self.samples[sample] = now - self.lag_s - (now - self.lag_s) % self.refresh_s
        return sample

    def _nvmlGpmMetricsGet(self, request: FakeRequest) -> FakeRequest:
        names = {number: metric for metric, number in METRIC_IDS.items()}
        for slot in range(request.numMetrics):
            metric = names[request.metrics[slot].metricId]
            request.metrics[slot].nvmlReturn = self.codes.get(metric, 0)
            request.metrics[slot].value = (
                self.values.get(metric, 50.0) if self.samples[request.sample1] != self.samples[request.sample2] else 0.0
            )
        self.spans.append((self.samples[request.sample1], self.samples[request.sample2]))
        return request


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    module = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def test_a_card_is_found_by_uuid_not_by_index(fake: FakeNvml) -> None:
    assert Nvml(UUID).sample().sm_clock_mhz == 1515
    assert Nvml(UUID.removeprefix("GPU-")).sample().sm_clock_mhz == 1515
    assert Nvml(fake.cards[0]).sample().sm_clock_mhz == 345


FIELDS = {
    "nvmlDeviceGetPowerUsage": ["power_mw"],
    "nvmlDeviceGetClockInfo": ["sm_clock_mhz", "mem_clock_mhz"],
    "nvmlDeviceGetTemperature": ["temperature_c"],
    "nvmlDeviceGetCurrentClocksEventReasons": ["throttle"],
    "nvmlDeviceGetUtilizationRates": ["utilisation_pct"],
}


@pytest.mark.parametrize("call", FIELDS)
def test_a_field_that_raises_is_none_and_the_rest_remain(fake: FakeNvml, call: str) -> None:
    fake.broken.add(call)
    sample = Nvml(UUID).sample()
    for name in (name for names in FIELDS.values() for name in names):
        assert (getattr(sample, name) is None) == (name in FIELDS[call])


def test_facts_survive_fields_that_raise(fake: FakeNvml) -> None:
    fake.broken |= {"nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetName"}
    facts = gpus.facts_of(UUID)
    assert (facts.uuid, facts.index, facts.power_limit_mw, facts.name) == (UUID, 1, None, None)
    assert (facts.driver, facts.clock_max_mhz) == ("580.159.04", 1980)
    assert [gpu.uuid for gpu in gpus.list_gpus()] == fake.cards


def test_without_a_driver_nothing_is_read_and_nothing_raises(fake: FakeNvml) -> None:
    fake.broken.add("nvmlInit")
    reader = Nvml(UUID)
    assert reader.sample() == nvml.Sample()
    assert reader.foreign_load() == ""
    assert gpus.facts_of("1234").uuid == "GPU-1234"
    assert all(not row.readable and "nvmlInit" in row.detail for row in capabilities(UUID))
    assert all(counter.value is None for counter in reader.window(lambda enough: None))


def test_an_unknown_uuid_reads_nothing(fake: FakeNvml) -> None:
    assert "knows no GPU" in Nvml("GPU-unknown").problem


def work(enough: Callable[[], bool]) -> None:
    while not enough():
        time.sleep(0.001)


def gpm_counters(load: Load = work) -> dict[str, Counter]:
    return {counter.name: counter for counter in Nvml(UUID).window(load) if counter.basis == "gpm"}


def test_a_gpm_reading_is_of_the_load_alone(fake: FakeNvml) -> None:
    spans: list[tuple[float, float]] = []

    def load(enough: Callable[[], bool]) -> None:
        begun = time.monotonic()
        work(enough)
        spans.append((begun, time.monotonic()))

    def alone() -> bool:
        (begun, ended), (first, second) = spans[-1], fake.spans[-1]
        return begun < first < second < ended

    for _ in range(5):  # where others keep the cores busy this thread may begin its load late
        counters = gpm_counters(load)
        if alone():
            break
    assert alone()
    assert set(counters) == set(gpm.METRICS)
    assert all(counter.value == 50.0 and counter.basis == "gpm" for counter in counters.values())


def test_a_gpm_metric_has_a_unit_of_its_own(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpm.METRICS, "gpm_pcie_tx_mib_s", ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", "MiB/s"))
    counters = gpm_counters()
    assert counters["gpm_pcie_tx_mib_s"].unit == "MiB/s"
    assert {one.unit for name, one in counters.items() if name.endswith("_pct")} == {"%"}


def test_gpm_metrics_fail_one_by_one(fake: FakeNvml) -> None:
    fake.codes["NVML_GPM_METRIC_FP16_UTIL"] = 3
    fake.values["NVML_GPM_METRIC_DRAM_BW_UTIL"] = math.nan
    fake.values["NVML_GPM_METRIC_FP32_UTIL"] = 0.0
    counters = gpm_counters()
    assert counters["gpm_fp16_util_pct"].value is None
    assert counters["gpm_dram_bw_util_pct"].value is None
    assert counters["gpm_fp32_util_pct"].value == 0.0
    assert counters["gpm_sm_util_pct"].value == 50.0


def test_gpm_is_none_before_hopper(fake: FakeNvml) -> None:
    fake.answers["nvmlGpmQueryDeviceSupport"] = SimpleNamespace(isSupportedDevice=0)
    assert all(counter.value is None for counter in gpm_counters().values())


def test_other_readings_do_not_need_gpm(fake: FakeNvml) -> None:
    fake.answers["nvmlGpmQueryDeviceSupport"] = SimpleNamespace(isSupportedDevice=0)
    found = {c.name: c.value for c in Nvml(UUID).window(work)}
    assert (found["temperature_c"], found["mem_clock_mhz"]) == (55, 3201)


def test_energy_is_of_a_whole_block(fake: FakeNvml) -> None:
    class Card:
        def burst(self, label: str) -> Burst:
            time.sleep(0.01)
            return Burst(label, 10_000_000, 1)

    card: Any = Card()
    power_mw = blocks.block(card, Nvml(UUID), "cublas", 0.3, 0.1).power_mw
    assert power_mw == pytest.approx(500_000, rel=0.05)


def test_an_error_of_the_load_comes_through(fake: FakeNvml) -> None:
    def broken(enough: Callable[[], bool]) -> None:
        raise ValueError("kernel failed")

    with pytest.raises(ValueError, match="kernel failed"):
        Nvml(UUID).window(broken)


def test_foreign_load_is_noticed(fake: FakeNvml) -> None:
    fake.pids = [4711]  # ours: in a container it has another number here
    assert Nvml(UUID).foreign_load() == ""
    fake.pids, fake.busy = [4711, 4712], 97
    assert Nvml(UUID).foreign_load() == "1 other process on this GPU, 97% busy before the first measurement"
    fake.broken.add("nvmlDeviceGetComputeRunningProcesses")
    fake.broken.add("nvmlDeviceGetUtilizationRates")
    fake.broken.add("nvmlDeviceGetGraphicsRunningProcesses")
    assert Nvml(UUID).foreign_load() == ""


def test_a_process_that_merely_has_the_gpu_open_is_a_note(fake: FakeNvml) -> None:
    ours = os.getpid()
    fake.pids = [ours, 4712]  # a notebook
    reader = Nvml(UUID)
    assert reader.foreign_load() == ""
    assert reader.foreign().note == "1 other process has this GPU open, idle"
    fake.loads = {ours: 98, 4712: 3, 4713: 90}  # 4713 has ended, or is on another GPU
    assert reader.foreign_load() == ""
    fake.loads = {ours: 60, 4712: 37}
    assert reader.foreign_load() == "1 other process at work on this GPU"
    assert reader.foreign().note == ""
    fake.pids = [1000, 4712]  # in a container, where we have another number
    assert Nvml(UUID).foreign_load() == ""
    fake.loads = {1000: 60, 4712: 37}
    assert Nvml(UUID).foreign_load() == "1 other process at work on this GPU"
    fake.pids, fake.loads = [ours], {ours: 100}
    assert Nvml(UUID).foreign() == Foreign(0, 0, 0, 0)


def test_where_nvml_does_not_tell_a_process_load_one_that_comes_later_counts(fake: FakeNvml) -> None:
    fake.pids, fake.loads = [4711, 4712], None
    reader = Nvml(UUID)
    assert reader.foreign_load() == ""
    assert reader.foreign().note == "1 other process has this GPU open, idle"  # the board was, before we began
    fake.pids = [4711, 4712, 4713]
    assert "1 other process came to this GPU" in reader.foreign_load()
    fake.broken.add("nvmlDeviceGetUtilizationRates")
    assert Nvml(UUID).foreign().note == "2 other processes have this GPU open, whether idle NVML does not tell"
    rows = {row.name: row for row in capabilities(UUID)}
    assert (rows["other processes"].readable, rows["other processes"].detail) == (False, "Not Supported")


def test_a_look_is_at_what_came_after_the_one_before(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.pids = [os.getpid(), 4712]
    since: list[int] = []
    monkeypatch.setattr(FakeNvml, "_nvmlDeviceGetProcessUtilization", lambda self, _, us: since.append(us) or [])
    reader = Nvml(UUID)
    reader.foreign_load()
    reader.foreign_load()
    assert since[0] < since[1] <= time.time() * 1e6


def test_own_load_is_not_foreign(fake: FakeNvml) -> None:
    reader = Nvml(UUID)
    fake.busy = 100  # our own race
    assert reader.foreign_load() == ""


def test_capability_rows_say_why_not(fake: FakeNvml) -> None:
    fake.broken.add("nvmlDeviceGetTotalEnergyConsumption")
    fake.answers["nvmlGpmQueryDeviceSupport"] = SimpleNamespace(isSupportedDevice=0)
    rows = {row.name: row for row in capabilities(UUID)}
    assert rows["power"].detail == "689 W"
    assert rows["throttle reasons"].detail == "software power cap"
    assert rows["MIG"].detail == "off"
    assert not rows["energy"].readable
    assert "Unknown Error" in rows["energy"].detail
    assert rows["GPM"].detail.startswith("this GPU has none")
