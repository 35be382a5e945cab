"""The process that talks to NVML, since a call that hangs in the driver cannot be cancelled: it is killed instead.

One line with the agent's time in seconds on standard input gives one line of JSON (a Sample) on standard output;
it ends at the end of input. An event of a card (an Xid) writes a byte to the descriptor named by the last argument
at once, so that a sample is asked for; the argument before it is the root of the node around a pod. Nothing is
imported that a sample does not need: this process stays beside training for months.
"""

import ctypes
import json
import os
import sys
import threading
import time
from typing import Any

import pynvml as nvml

from sentinel.checks.nvidia.driver_library import is_named, of_node
from sentinel.checks.nvidia.nvml_read import Ask, Card, Gpm, text_of

# Xid, double-bit ECC, poison (fatal or not), GPU unavailable, recovery action changed: each asks for a sample.
EVENTS = 0x8 | 0x2 | 0x1000 | 0x2000 | 0x4000 | 0x8000
WAIT_MS = 10_000
MAX_EVENTS = 1000  # kept between two samples; more of a flood say nothing new
BETWEEN_WAKES_S = 1.0  # a flood asks for one sample a second; the driver holds the rest so long
AFTER_ERROR_S = 5.0


class Watch(threading.Thread):
    """Waits for events in a thread of its own, which a hanging driver may keep."""

    def __init__(self, wake_fd: int) -> None:
        super().__init__(name="nvml-events", daemon=True)
        self._wake_fd = wake_fd
        self._addresses: dict[int | None, str] = {}
        self._taken: list[dict[str, Any]] = []
        self._set: Any = None
        self._woke_s = 0.0

    def register(self, ask: Ask, count: int) -> bool:
        """Register all cards that tell events. False: none does."""
        self._set = ask("nvmlEventSetCreate")
        if self._set is None:
            return False
        for index in range(count):
            handle = ask("nvmlDeviceGetHandleByIndex", index)
            kinds = ask("nvmlDeviceGetSupportedEventTypes", handle) if handle is not None else None
            kinds = (kinds or 0) & EVENTS
            pci = ask("nvmlDeviceGetPciInfo", handle) if kinds else None
            if pci is not None:
                ask("nvmlDeviceRegisterEvents", handle, kinds, self._set)
                if not ask.code:
                    self._addresses[_number(handle)] = text_of(pci.busId)
        return bool(self._addresses)

    def run(self) -> None:
        failed = False
        while True:
            try:
                data = nvml.nvmlEventSetWait(self._set, WAIT_MS)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    failed = False
                    continue
                if not failed:
                    self._wake()  # a card that fell off the bus: the sample says which
                failed = True
                time.sleep(AFTER_ERROR_S)
                continue
            failed = False
            if len(self._taken) < MAX_EVENTS:
                self._taken.append(
                    {
                        "pci": self._addresses.get(_number(data.device), ""),
                        "kind": data.eventType,
                        "data": data.eventData,
                        "age_s": time.monotonic(),  # `take` makes it an age
                    }
                )
            if len(self._taken) == 1:
                self._wake()

    def _wake(self) -> None:
        time.sleep(max(0.0, self._woke_s + BETWEEN_WAKES_S - time.monotonic()))
        self._woke_s = time.monotonic()
        try:
            os.write(self._wake_fd, b"!")
        except OSError:  # full: the reader is behind and will come
            pass

    def take(self) -> list[dict[str, Any]]:
        """What came since the last call."""
        taken, self._taken = self._taken, []
        now_s = time.monotonic()
        return [{**event, "age_s": now_s - event["age_s"]} for event in taken]


def _number(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _load(root: str) -> None:
    """Of a pod the library of its node, where there is one: the driver's own, and another program cannot bring it. What
    is loaded already is found by its name; where none loads, NVML itself says so."""
    if not root or is_named():  # somebody chose one
        return
    for path in of_node(root):
        try:
            ctypes.CDLL(path)
        except OSError:  # of another machine or C library
            continue
        return


class Session:
    """NVML, initialised once and again after it failed."""

    def __init__(self, root: str, wake_fd: int) -> None:
        self._root, self._wake_fd = root, wake_fd
        self._ready = False
        self._missing: set[str] = set()
        self._denied: set[str] = set()
        self._cards: dict[int, Card] = {}
        self._gpm = Gpm()
        self._watch: Watch | None = None

    def _ask(self) -> Ask:
        return Ask(self._missing, self._denied)

    def sample(self, now_s: float) -> dict[str, Any]:
        """One nvml_sample.Sample; `now_s` is the agent's clock, which says what is due."""
        try:
            if not self._ready:
                _load(self._root)
                nvml.nvmlInit()
                self._ready = True
            count = nvml.nvmlDeviceGetCount()
            driver = text_of(nvml.nvmlSystemGetDriverVersion())
        except nvml.NVMLError as error:
            if self._ready and error.value == nvml.NVML_ERROR_UNINITIALIZED:
                self._ready = False
            return {"problem": str(error), "problem_code": error.value}
        if self._watch is None:
            self._watch = Watch(self._wake_fd)
            if self._watch.register(self._ask(), count):
                self._watch.start()
        events = self._watch.take()
        for index in range(count):
            self._cards.setdefault(index, Card(index, self._gpm))
        devices = [
            self._cards[index].read(self._ask(), now_s, everything=bool(events)) for index in range(count)
        ]
        return {
            "driver": driver,
            "devices": devices,
            "events": events,
            "missing": sorted(self._missing),
            "denied": sorted(self._denied),
        }


def main() -> None:
    session = Session(sys.argv[-2], int(sys.argv[-1]))
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(json.dumps(session.sample(float(line))).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
