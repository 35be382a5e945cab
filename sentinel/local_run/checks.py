"""The checks of the machine that a job runs on: what they watch for it, and what is kept of them."""

import asyncio
import contextlib
from typing import Any

from msgspec import structs

from sentinel.checks.disk.mounts import on_network
from sentinel.checks.runner import CheckRunner
from sentinel.cluster.local.store import LocalStore
from sentinel.controller.effects.proof import checkpoint_folder
from sentinel.core.model import ProtectedJob
from sentinel.core.reports import RankExit
from sentinel.core.triage.disk import may_be_a_failed_write
from sentinel.settings import Settings
from sentinel.util.errors import TemporaryError

KERNEL_LOG_S = 2.0


class SessionChecks:
    def __init__(self, job: ProtectedJob, settings: Settings, store: LocalStore) -> None:
        self._job, self._settings, self._store = job, settings, store
        self._saved = b""
        self.runner = CheckRunner(self._check_settings(), self._watched_paths())

    def restore(self) -> None:
        kept = self._store.positions(self._key).get((0, 0))
        if kept is not None:
            self.runner.restore(kept)

    @property
    def _key(self) -> str:
        return f"{self._job.name}/checks"

    def save(self) -> None:
        """What the checks found and how far the kernel log was read: nothing is lost or told twice."""
        snapshot = self.runner.snapshot()
        if snapshot != self._saved:
            self._saved = snapshot
            self._store.save(positions={(self._key, 0, 0): snapshot})

    async def precheck(self, names: tuple[str, ...], max_age_s: float) -> Any:
        try:
            return await self.runner.check_now(names, max_age_s)
        except KeyError as error:
            raise TemporaryError(f"unknown check {error}") from None

    async def read_kernel_log(self) -> None:
        """Whom the memory killer killed stands there before the process is gone. A hung check delays no restart."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.runner.check_anew("kernel"), KERNEL_LOG_S)

    def rank_ended(self, gone: RankExit) -> None:
        """A disk may have filled since it was last looked at."""
        if not gone.ok and may_be_a_failed_write(gone):
            from sentinel.checks.disk.file_systems import full_now

            if full := full_now(self._settings, self._watched_paths()):
                self.runner.seen("disk", full)

    def _watched_paths(self) -> list[str]:
        cwd = self._job.launch.cwd if self._job.launch else "/"
        return [cwd, str(self._settings.state_path), self._checkpoints() or cwd]

    def _checkpoints(self) -> str:
        checkpoint = self._job.policy.resume.checkpoint if self._job.policy.resume else None
        if checkpoint is None or self._job.launch is None:
            return ""
        return checkpoint_folder(self._job.launch.cwd, checkpoint.proof)

    def _check_settings(self) -> Settings:
        """Whether a checkpoint could be written is known before one is: on a network mount it is tried."""
        settings, folder = self._settings, self._checkpoints()
        if not folder or not on_network(folder, settings.procfs):
            return settings
        probes = (*settings.disk.probe_writes, folder)
        return structs.replace(settings, disk=structs.replace(settings.disk, probe_writes=probes))
