"""The process that talks to NVML, since a call that hangs in the driver cannot be cancelled: it is killed instead.

One request line on standard input gives one line of JSON (a Sample) on standard output. It ends at the end of input.
Anything that the library says about one value makes that value absent; only "lost" and "reset required" are kept.
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pynvml as nvml

from sentinel.checks.nvml_sample import Device, Process, Sample

T = TypeVar("T")

# Errors that say that the card itself is gone or stuck, by any call.
CARD_ERRORS = {nvml.NVML_ERROR_GPU_IS_LOST: "lost", nvml.NVML_ERROR_RESET_REQUIRED: "reset-required"}


class _Asking:
    """Asks one card for values: None where the driver has none, the card's error kept."""

    def __init__(self) -> None:
        self.error = ""

    def __call__(self, function: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return function(*arguments)
        except nvml.NVMLError as error:
            self.error = self.error or CARD_ERRORS.get(error.value, "")
            return None


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""


def _recovery_action(handle: Any) -> int | None:
    value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
    return int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None


def read_device(index: int) -> Device:
    """All values of one card. Never raises for what NVML answers."""
    ask = _Asking()
    handle = ask(nvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return Device(index=index, error=ask.error or "no-handle")
    pci = ask(nvml.nvmlDeviceGetPciInfo, handle)
    rows = ask(nvml.nvmlDeviceGetRemappedRows, handle)
    processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    return Device(
        index=index,
        pci=_text(pci.busId) if pci is not None else "",
        uuid=_text(ask(nvml.nvmlDeviceGetUUID, handle)),
        name=_text(ask(nvml.nvmlDeviceGetName, handle)),
        recovery_action=ask(_recovery_action, handle),
        ecc_uncorrected=ask(
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        remap_pending=bool(rows[2]) if rows else None,
        remap_failed=bool(rows[3]) if rows else None,
        temperature_celsius=ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        slowdown_celsius=ask(
            nvml.nvmlDeviceGetTemperatureThreshold, handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        ),
        processes=[Process(item.pid, item.usedGpuMemory or 0) for item in processes],
        error=ask.error,
    )


class _Session:
    """NVML, initialised once and again after it failed."""

    def __init__(self) -> None:
        self._ready = False

    def sample(self) -> Sample:
        try:
            if not self._ready:
                nvml.nvmlInit()
                self._ready = True
            count = nvml.nvmlDeviceGetCount()
            driver = _text(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError as error:
            if self._ready and error.value == nvml.NVML_ERROR_UNINITIALIZED:
                self._ready = False
            return Sample(problem=str(error), problem_code=error.value)
        return Sample(driver=driver, devices=[read_device(index) for index in range(count)])


def main() -> None:
    session = _Session()
    for _ in sys.stdin.buffer:
        sys.stdout.buffer.write(msgspec.json.encode(session.sample()) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
