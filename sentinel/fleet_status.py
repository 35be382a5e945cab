"""The status of the fleet's records, which lags behind them: for who reads it, and in the way of nothing else."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from sentinel.clock import Clock
from sentinel.core.fleet_model import NodeQuarantine
from sentinel.fleet_cluster import FleetCluster

SHOWN_AT_ONCE = 8
SHOW_S = 1.0  # for the status of so many records: cordons wait for it
SHOW_AGAIN_S = 10.0  # after a status that could not be written
REST = 4.0  # times as long as some took nothing is written: others have most of the API server

Perform = Callable[[str, Mapping[str, Awaitable[None]]], Awaitable[Mapping[str, Exception]]]


class RecordStatus:
    """`perform` does works of one kind, and returns what failed."""

    def __init__(self, cluster: FleetCluster, clock: Clock, perform: Perform) -> None:
        self._cluster, self._clock, self._perform = cluster, clock, perform
        self._shown: dict[str, NodeQuarantine] = {}  # records as their status says them
        self._lag: dict[str, None] = {}  # those whose status may lag
        self._from_mono_s = 0.0  # after a failure

    def forget(self) -> None:
        """What another leadership wrote."""
        self._shown.clear()
        self._lag.clear()

    def saved(self, id: str) -> None:
        self._lag[id] = None

    def look_over(self) -> None:
        """All of them: whoever changed them, and whatever an earlier leader left undone."""
        records = self._cluster.records
        self._shown = {id: one for id, one in self._shown.items() if records.get(id) is one}
        self._lag = dict.fromkeys(id for id in records if id not in self._shown)

    @property
    def due(self) -> bool:
        return bool(self._lag) and self._clock().mono_s >= self._from_mono_s

    async def write_some(self) -> None:
        shown = {}
        for id in [*self._lag][:SHOWN_AT_ONCE]:
            del self._lag[id]
            if (record := self._cluster.record(id)) is not None:
                shown[id] = record
        begun_s = time.monotonic()
        failed: Collection[str] = shown.keys()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHOW_S):
                works = {id: self._cluster.show(one) for id, one in shown.items()}
                failed = (await self._perform("record-status", works)).keys()
        self._shown.update((id, one) for id, one in shown.items() if id not in failed)
        took_s = time.monotonic() - begun_s
        if failed or took_s > SHOW_S / 4:
            self._from_mono_s = self._clock().mono_s + (SHOW_AGAIN_S if failed else REST * took_s)
