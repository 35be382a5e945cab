"""Nodes that speak to the controllers with the agent's own end of the transport, each with clocks of its own."""

import asyncio
import contextlib
import time
from pathlib import Path

from msgspec import structs

from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.core.now import Now
from sentinel.core.reports import Report
from sentinel.transport.client import Client, ClientSettings
from tests.samples import XID_79

XID_48 = structs.replace(XID_79, code="XID 48", action="RESET_GPU", summary="a double bit error")
ECC = structs.replace(
    XID_79, check="gpus", code="ecc", action="RESET_GPU", summary="rows cannot be remapped", event=False
)
FULL = structs.replace(
    ECC,
    check="disk",
    component=Component.DISK,
    entity="/scratch",
    code="disk-space",
    severity=Severity.DEGRADED,
    action="FREE_SPACE",
    summary="the file system is almost full",
)
KINDS = (XID_79, XID_48, ECC, FULL)
CHECKS = ("kernel", "gpus", "disk", "infiniband")
BEAT = Finding(
    check="beat",
    component=Component.SYSTEM,
    entity="node",
    code="beat",
    severity=Severity.INFO,
    action="",
    summary="an event of no importance",
    event=True,
)


class SimNode:
    """`found` is what its checks see now. `heard` is false while its agent and kubelet are silent."""

    def __init__(
        self,
        name: str,
        pool: str,
        folder: Path,
        addresses: tuple[str, ...],
        bundle: str,
        *,
        skew_s: float | None = None,
    ) -> None:
        self.name, self.pool = name, pool
        self.folder, self.bundle, self.addresses = folder, bundle, addresses
        self.machine = 0
        self.boots = 0
        self.uid = ""  # of its object; "": there is none
        self.found: dict[str, Finding] = {}  # by code
        self.since: dict[str, float] = {}  # code -> when it was found, Unix time
        self.acts: list[tuple[float, str]] = []  # of people
        self.cordoned = False  # by a person
        self.silent = False
        self.client: Client | None = None
        self._running: asyncio.Task[None] | None = None
        self._booted_s = time.monotonic() - 1000.0
        # Of its wall clock: by the hour, and each another.
        self._skew_s = (sum(map(ord, name)) % 7 - 3) * 3600.0 if skew_s is None else skew_s
        self._number = 0

    @property
    def boot_id(self) -> str:
        return f"{self.name}-{self.machine}-{self.boots}"

    def skew(self, seconds: float) -> None:
        """Set its wall clock, so much ahead of the right time."""
        self._skew_s = seconds

    def now(self) -> Now:
        return Now(time.monotonic() - self._booted_s, time.time() + self._skew_s)

    # ------------------------------------------------------------ its agent

    def start(self, token: str) -> None:
        path = self.folder / f"{self.name}.token"
        path.write_text(token)
        settings = ClientSettings(
            node=self.name,
            boot_id=self.boot_id,
            addresses=self.addresses,
            token_path=str(path),
            bundle_path=self.bundle,
            folder=str(self.folder / f"{self.name}-{self.machine}"),
        )
        self.client = Client(settings, lambda orders: None, clock=self.now)
        self.tell()
        self._running = asyncio.create_task(self.client.run())

    async def stop(self) -> None:
        if self._running is not None and self.client is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
            self.client.close()
        self._running = self.client = None

    async def restart_agent(self) -> None:
        await self.stop()
        self.start((self.folder / f"{self.name}.token").read_text())

    def tell(self) -> None:
        """What its checks see now, and something that makes the agent send it at once."""
        if self.client is None:
            return
        now = self.now()
        self._number += 1
        by_check: dict[str, list[Finding]] = {check: [] for check in CHECKS}
        for finding in self.found.values():
            by_check[finding.check].append(finding)
        beat = structs.replace(BEAT, count=self._number, boot_id=self.boot_id)
        results = [
            CheckResult(
                check=check,
                state=CheckState.FOUND if found else CheckState.OK,
                findings=tuple(found),
                at_mono_s=now.mono_s,
            )
            for check, found in (*by_check.items(), ("beat", [beat]))
        ]
        with contextlib.suppress(OSError):
            self.client.send(
                Report(
                    node=self.name,
                    boot_id=self.boot_id,
                    sequence=self._number,
                    now=now,
                    checks=tuple(results),
                )
            )

    # ------------------------------------------------------------ what befalls it

    def breaks(self, finding: Finding) -> None:
        self._number += 1
        if finding.event:
            finding = structs.replace(finding, boot_id=self.boot_id, count=self._number)
        self.found[finding.code] = finding
        self.since[finding.code] = time.time()
        self.tell()

    def repaired(self) -> None:
        """Without a reboot: what a reset cures, and what was wrong with disks."""
        for code in [code for code, one in self.found.items() if one.action != "RESTART_BM"]:
            del self.found[code]
        self.tell()

    def reboots(self) -> None:
        """The agent must be stopped; what a reboot cures is gone."""
        self.boots += 1
        self._booted_s = time.monotonic() - 5.0
        self.found = {code: one for code, one in self.found.items() if one.check == "disk"}
