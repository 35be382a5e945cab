"""Runs tests/kmsg_device.py: a kernel log whose records are the kernel's, at a path or over /dev/kmsg itself."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[1]
NSENTER = shutil.which("nsenter") or "nsenter"  # also where a test takes PATH away
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class KernelLog:
    """Without `path` it is mounted over /dev/kmsg in a mount namespace of its own, which `run` enters."""

    def __init__(self, path: Path | None = None, capacity: int = 100_000) -> None:
        self.path = path
        command = [
            sys.executable,
            str(ROOT / "tests/kmsg_device.py"),
            str(path or "/dev/kmsg"),
            str(capacity),
        ]
        if path is None:
            command = ["unshare", "--mount", "--propagation", "private", *command]
        else:
            path.touch()
        self._device = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT
        )
        assert self._device.stdout is not None
        assert self._device.stdout.readline() == b"ready\n"

    def __enter__(self) -> "KernelLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device.communicate()  # the end of its input ends it, and with it the connection
        if self.path is not None:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def _do(self, *commands: Sequence[Any]) -> None:
        assert self._device.stdin is not None
        assert self._device.stdout is not None
        self._device.stdin.write(b"".join(json.dumps(command).encode() + b"\n" for command in commands))
        self._device.stdin.flush()
        for _ in commands:
            assert self._device.stdout.readline() == b"done\n"

    def log(self, *lines: str, facility: int = 0, at_us: int | None = None) -> None:
        self._do(*(("log", line, facility, at_us) for line in lines))

    def raw(self, *records: str) -> None:
        """Records in these very bytes (latin-1)."""
        self._do(*(("raw", record) for record in records))

    def skip(self, count: int) -> None:
        """Records that were there and are gone before anybody could open the log."""
        self._do(("skip", count))

    def keep(self, count: int) -> None:
        """The ring holds only the newest `count` records from now on."""
        self._do(("keep", count))

    def fail(self, number: int) -> None:
        """Reads fail with this errno; 0: they work again."""
        self._do(("fail", number))

    def command(self, *command: str) -> list[str]:
        """`command` as it is to be started where this log is /dev/kmsg."""
        return [NSENTER, f"--target={self._device.pid}", "--mount", "--", *command]

    def run(self, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*command),
            capture_output=True,
            text=True,
            timeout=180,
            cwd=ROOT,
            env={**ENVIRONMENT, **environment},
        )
