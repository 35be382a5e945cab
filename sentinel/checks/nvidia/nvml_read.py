"""Reads one card through NVML into plain data, in the names of nvml_sample. Belongs to the child process.

Anything that the library says about one value makes that value absent; of errors only "lost" and
"reset required" are kept, and the names of functions that the driver does not have.
"""

import ctypes
from typing import Any

import pynvml as nvml

# Errors that say that the card itself is gone or stuck, by any call.
CARD_ERRORS = {nvml.NVML_ERROR_GPU_IS_LOST: "lost", nvml.NVML_ERROR_RESET_REQUIRED: "reset-required"}
IDENTITY_S = 600.0
LINKS_S = 60.0

# NVML field ids, from nvml.h.
THROTTLED = {"hw_thermal": 270, "hw_brake": 271, "sw_thermal": 269, "sw_power": 74}
RECOVERY_ACTION, MEMORY_TEMPERATURE, ENERGY = 230, 82, 83
SLOWDOWN_MARGIN = 194
RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING = 29, 30, 31
LINK_COUNT = 91
NVLINK_TOTALS = {"crc_flit": 38, "crc_data": 45, "replay": 52, "recovery": 59, "ecc_data": 160}
NVLINK5_EACH = {
    "malformed_packet": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "receive_remote": 209,
    "receive_general": 210,
    "link_integrity": 211,
    "transmit_discard": 212,
    "recovery_successful": 213,
    "recovery_failed": 214,
    "effective": 219,
}
# nvmlGpmMetricId_t
GPM = {"graphics": 1, "sm": 2, "tensor": 5, "dram": 10}


def text_of(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


class Ask:
    """Calls NVML for one card: None where it has no answer, the card's error kept."""

    def __init__(self, missing: set[str], denied: set[str]) -> None:
        """What the driver does not have or does not allow is added to the two."""
        self.error = ""
        self.code = 0  # of the last call
        self._missing = missing
        self._denied = denied

    def __call__(self, name: str, *arguments: Any) -> Any:
        self.code = nvml.NVML_ERROR_FUNCTION_NOT_FOUND if name in self._missing else 0
        if self.code:
            return None
        try:
            return getattr(nvml, name)(*arguments)
        except nvml.NVMLError as error:
            self.code = error.value
            if self.code == nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                self._missing.add(name)
            elif self.code == nvml.NVML_ERROR_NO_PERMISSION:
                self._denied.add(name)
            self.error = self.error or CARD_ERRORS.get(self.code, "")
            return None
        except UnicodeDecodeError:  # a name or serial number of garbage bytes
            return None

    def fields(self, handle: Any, ids: list[Any]) -> list[int | None]:
        """Values of NVML fields; each id is a number or (number, link)."""
        values = self("nvmlDeviceGetFieldValues", handle, ids)
        return [None] * len(ids) if values is None else [_field(value) for value in values]


def _field(value: Any) -> int | None:
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    union, kind = value.value, value.valueType
    if kind == nvml.NVML_VALUE_TYPE_DOUBLE:
        return int(union.dVal)
    if kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT:
        return int(union.uiVal)
    if kind == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG:
        return int(union.ulVal)
    if kind == nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG:
        return int(union.sllVal)
    if kind == nvml.NVML_VALUE_TYPE_SIGNED_INT:
        return int(union.siVal)
    return int(union.ullVal)


def read_identity(ask: Ask, handle: Any) -> dict[str, Any]:
    """The values of nvml_sample.Identity."""
    pci = ask("nvmlDeviceGetPciInfo", handle)
    ecc = ask("nvmlDeviceGetEccMode", handle) or (None, None)
    ask("nvmlDeviceValidateInforom", handle)
    corrupt = {0: False, nvml.NVML_ERROR_CORRUPTED_INFOROM: True}.get(ask.code)
    mig = ask("nvmlDeviceGetMigMode", handle)
    (margin,) = ask.fields(handle, [SLOWDOWN_MARGIN])
    return {
        "pci": text_of(pci.busId) if pci is not None else "",
        "uuid": text_of(ask("nvmlDeviceGetUUID", handle)),
        "name": text_of(ask("nvmlDeviceGetName", handle)),
        "minor": ask("nvmlDeviceGetMinorNumber", handle),
        "vbios": text_of(ask("nvmlDeviceGetVbiosVersion", handle)),
        "inforom": text_of(ask("nvmlDeviceGetInforomImageVersion", handle)),
        "inforom_corrupt": corrupt,
        "gsp": text_of(ask("nvmlDeviceGetGspFirmwareVersion", handle)),
        "ecc_mode": ecc[0],
        "ecc_mode_pending": ecc[1],
        "persistence": ask("nvmlDeviceGetPersistenceMode", handle),
        "mig": mig[0] if mig else None,
        "numa_node": ask("nvmlDeviceGetNumaNodeId", handle),
        "power_limit_mw": ask("nvmlDeviceGetEnforcedPowerLimit", handle),
        "power_default_mw": ask("nvmlDeviceGetPowerManagementDefaultLimit", handle),
        "slowdown_celsius": _limit(ask, handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        "memory_max_celsius": _limit(ask, handle, nvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
        "slowdown_margin_celsius": margin,
        "pcie_gen_max": ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        "pcie_width_max": ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
    }


def _limit(ask: Ask, handle: Any, which: int) -> int | None:
    value = ask("nvmlDeviceGetTemperatureThreshold", handle, which)
    return int(value) if value else None


def read_links(ask: Ask, handle: Any, now_s: float) -> dict[str, Any]:
    """The values of nvml_sample.Links."""
    sbe, dbe, pending, count = ask.fields(handle, [RETIRED_SBE, RETIRED_DBE, RETIRED_PENDING, LINK_COUNT])
    active: list[int] = []
    inactive: list[int] = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS if count is None else count):
        state = ask("nvmlDeviceGetNvLinkState", handle, link)
        if state is not None:
            (active if state else inactive).append(link)
        elif ask.code != nvml.NVML_ERROR_NOT_SUPPORTED:
            break
    sram = nvml.c_nvmlEccSramErrorStatus_v1_t()
    ask("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(sram))
    return {
        "at_s": now_s,
        "sram_exceeded": None if ask.code else bool(sram.bThresholdExceeded),
        "pcie_replays": ask("nvmlDeviceGetPcieReplayCounter", handle),
        "retired_pages": None if sbe is None and dbe is None else (sbe or 0) + (dbe or 0),
        "retired_pending": None if pending is None else bool(pending),
        "nvlink_active": active,
        "nvlink_inactive": inactive,
        "nvlink_errors": _nvlink_errors(ask, handle, [*active, *inactive]) if active or inactive else {},
    }


def _nvlink_errors(ask: Ask, handle: Any, links: list[int]) -> dict[str, int]:
    totals = ask.fields(handle, list(NVLINK_TOTALS.values()))
    errors = {kind: value for kind, value in zip(NVLINK_TOTALS, totals, strict=True) if value is not None}
    kinds = list(NVLINK5_EACH.items())
    first = ask.fields(handle, [(field, links[0]) for _, field in kinds])
    kinds = [kind for kind, value in zip(kinds, first, strict=True) if value is not None]
    for kind, field in kinds:  # one call for all links of a kind; older cards have none of these
        values = ask.fields(handle, [(field, link) for link in links])
        told = [value for value in values if value is not None]
        if len(told) == len(values):  # a link that is silent now must not look like new errors the next time
            errors[kind] = sum(told)
    return errors


class Gpm:
    """Hopper's and later cards' own activity counters: each value is over the time since the sample before."""

    def __init__(self) -> None:
        self._earlier: dict[int, Any] = {}
        self._unsupported: set[int] = set()

    def read(self, ask: Ask, index: int, handle: Any) -> dict[str, float]:
        if index in self._unsupported:
            return {}
        if index not in self._earlier:
            support = ask("nvmlGpmQueryDeviceSupport", handle)
            if support is None or not support.isSupportedDevice:
                self._unsupported.add(index)
                return {}
        newer = ask("nvmlGpmSampleAlloc")
        if newer is None:
            return {}
        if ask("nvmlGpmSampleGet", handle, newer) is None:
            ask("nvmlGpmSampleFree", newer)
            return {}
        older, self._earlier[index] = self._earlier.get(index), newer
        if older is None:
            return {}
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        request.sample1, request.sample2 = older, newer
        for place, metric in enumerate(GPM.values()):
            request.metrics[place].metricId = metric
        answer = ask("nvmlGpmMetricsGet", request)
        ask("nvmlGpmSampleFree", older)
        if answer is None:
            return {}
        return {
            name: answer.metrics[place].value / 100
            for place, name in enumerate(GPM)
            if answer.metrics[place].nvmlReturn == nvml.NVML_SUCCESS
        }


def _fabric(ask: Ask, handle: Any) -> dict[str, int] | None:
    for kind in (nvml.c_nvmlGpuFabricInfo_v3_t, nvml.c_nvmlGpuFabricInfo_v2_t):
        info = kind()
        ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
        if not ask.code:
            return {
                "state": info.state & 0xFF,  # one byte in nvml.h
                "status": info.status,
                "health_mask": info.healthMask,
                "health_summary": getattr(info, "healthSummary", 0),  # since version 3
            }
        if ask.code != nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
            return None
    return None


def _processes(ask: Ask, handle: Any) -> list[dict[str, int]] | None:
    """Everything that holds memory of the card. None: not told."""
    compute = ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    if compute is None:
        compute = ask("nvmlDeviceGetComputeRunningProcesses_v2", handle)
    if compute is None:
        return None
    others = ask("nvmlDeviceGetGraphicsRunningProcesses_v3", handle) or []
    shared = ask("nvmlDeviceGetMPSComputeRunningProcesses_v3", handle) or []
    every = {item.pid: item.usedGpuMemory or 0 for item in (*shared, *others, *compute)}
    return [{"pid": pid, "used_bytes": used} for pid, used in every.items()]


def read_quick(ask: Ask, handle: Any) -> dict[str, Any]:
    """What every sample reads of a card (GPM aside)."""
    throttled = list(THROTTLED)
    action, memory_celsius, energy, *ns = ask.fields(
        handle, [RECOVERY_ACTION, MEMORY_TEMPERATURE, ENERGY, *THROTTLED.values()]
    )
    rows = ask("nvmlDeviceGetRemappedRows", handle)
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", handle)
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    memory = ask("nvmlDeviceGetMemoryInfo", handle, nvml.nvmlMemory_v2) or ask(
        "nvmlDeviceGetMemoryInfo", handle
    )
    use = ask("nvmlDeviceGetUtilizationRates", handle)
    ecc = "nvmlDeviceGetTotalEccErrors"
    return {
        "recovery_action": action,
        "ecc_uncorrected": ask(ecc, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
        "ecc_corrected": ask(ecc, handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
        "rows_corrected": rows[0] if rows else None,
        "rows_uncorrected": rows[1] if rows else None,
        "remap_pending": bool(rows[2]) if rows else None,
        "remap_failed": bool(rows[3]) if rows else None,
        "temperature_celsius": ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        "memory_celsius": memory_celsius or None,  # cards without the sensor say 0
        "margin_celsius": ask("nvmlDeviceGetMarginTemperature", handle),
        "reasons": reasons,
        "throttled_ns": {k: v for k, v in zip(throttled, ns, strict=True) if v is not None},
        "power_mw": ask("nvmlDeviceGetPowerUsage", handle),
        "energy_mj": energy,
        "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        "mem_clock_mhz": ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
        "pstate": ask("nvmlDeviceGetPerformanceState", handle),
        "util_percent": use.gpu if use is not None else None,
        "mem_util_percent": use.memory if use is not None else None,
        "memory_bytes": memory.total if memory is not None else None,
        "memory_used_bytes": memory.used if memory is not None else None,
        "pcie_gen": ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
        "pcie_width": ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
        "fabric": _fabric(ask, handle),
        "processes": _processes(ask, handle),
    }


class Card:
    """One card of NVML's order, with what is not read at every sample."""

    def __init__(self, index: int, gpm: Gpm) -> None:
        self.index = index
        self._gpm = gpm
        self._identity: dict[str, Any] = {}
        self._links: dict[str, Any] | None = None
        self._identity_due_s = self._links_due_s = 0.0

    def read(self, ask: Ask, now_s: float, *, everything: bool = False) -> dict[str, Any]:
        """All values of the card as nvml_sample.Device names them. Never raises for what NVML answers."""
        handle = ask("nvmlDeviceGetHandleByIndex", self.index)
        if handle is None:
            other = "unknown" if ask.code == nvml.NVML_ERROR_UNKNOWN else "no-handle"
            return self._known(error=ask.error or other)
        if now_s >= self._identity_due_s:
            identity = read_identity(ask, handle)
            if not ask.error:
                self._identity, self._identity_due_s = identity, now_s + IDENTITY_S
        if everything or now_s >= self._links_due_s:
            links = read_links(ask, handle, now_s)
            if not ask.error:
                self._links, self._links_due_s = links, now_s + LINKS_S
        values = read_quick(ask, handle)
        values["gpm"] = {} if ask.error else self._gpm.read(ask, self.index, handle)
        return self._known(error=ask.error, **values)

    def _known(self, **values: Any) -> dict[str, Any]:
        """A card that is lost is still told by the name and address that it had."""
        everything = {"index": self.index, "identity": _told(self._identity), **values}
        if self._links is not None:
            everything["links"] = _told(self._links)
        return _told(everything)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
