"""The status of the fleet's records, which lags behind them: for who reads it, and in the way of nothing else."""

import asyncio
import time
from collections.abc import Iterator

from sentinel.controller.nodes.cluster import FleetCluster
from sentinel.core.fleet.model import NodeQuarantine
from sentinel.util.clock import Clock
from sentinel.util.errors import PermanentError, TemporaryError

SHOWN_AT_ONCE = 4
SHOW_S = 1.0  # for one status: its node waits for it
SHOW_AGAIN_S = 10.0  # after a status that was not answered
REFUSED_S = 0.25  # after one that is refused: so may be all of them
REST = 4.0  # times as long as one took nothing is begun: others have most of the API server


class RecordStatus:
    def __init__(self, cluster: FleetCluster, clock: Clock) -> None:
        self._cluster, self._clock = cluster, clock
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

    def due(self) -> Iterator[NodeQuarantine]:
        """What may be written now, the one that lags longest first."""
        for id in [*self._lag] if self._clock().mono_s >= self._from_mono_s else ():
            record = self._cluster.record(id)
            if record is None:
                del self._lag[id]
            else:
                yield record

    async def write(self, id: str) -> None:
        """As it is by now. Raises what the cluster raises, and TemporaryError after SHOW_S."""
        self._lag.pop(id, None)
        record = self._cluster.record(id)
        if record is None:
            return
        begun_s = time.monotonic()
        rest_s = SHOW_AGAIN_S
        try:
            async with asyncio.timeout(SHOW_S):
                await self._cluster.show(record)
            self._shown[record.id] = record
            took_s = time.monotonic() - begun_s
            rest_s = REST * took_s if took_s > SHOW_S / 4 else 0.0
        except PermanentError:
            rest_s = REFUSED_S
            raise
        except TimeoutError:
            raise TemporaryError(f"the status of {record.id} was not written in {SHOW_S:g} s") from None
        finally:
            self._from_mono_s = max(self._from_mono_s, self._clock().mono_s + rest_s)
