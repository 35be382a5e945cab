"""Kernel messages of this boot that the ring no longer holds, out of systemd's journal."""

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

import msgspec
from msgspec import Struct

from sentinel.logs.kmsg import KmsgRecord

MAX_LINES = 20_000  # the newest ones: more than any ring held, and read in less than a second
MAX_BYTES = 32 << 20
FIRST_US = 1_000_000  # the first message of a boot is younger
FIELDS = "MESSAGE,PRIORITY,SYSLOG_FACILITY,_SOURCE_MONOTONIC_TIMESTAMP"


class Past(Struct, frozen=True):
    """What the journal gave. `problem` says why something may be missing; "" means that nothing is."""

    records: tuple[KmsgRecord, ...]
    problem: str = ""
    in_time: bool = True  # False: it may answer when it is given longer


class _Entry(Struct, gc=False):
    """The fields that journald writes of a kernel message; it takes the time over from the record."""

    message: str | list[int] | None = msgspec.field(
        name="MESSAGE", default=None
    )  # numbers: bytes not in UTF-8
    priority: str = msgspec.field(name="PRIORITY", default="")
    facility: str = msgspec.field(name="SYSLOG_FACILITY", default="")
    at_us: str = msgspec.field(name="_SOURCE_MONOTONIC_TIMESTAMP", default="")


_decode = msgspec.json.Decoder(_Entry).decode


def _record(line: bytes, trusted: tuple[int, ...]) -> KmsgRecord | None:
    """None for what is not whole or not of a trusted facility: what users write to /dev/kmsg is in here too."""
    try:
        entry = _decode(line)
        facility, at_us = int(entry.facility), int(entry.at_us)
        level = int(entry.priority or 6)
        message = entry.message
        text = bytes(message).decode("utf-8", "replace") if isinstance(message, list) else message
    except (msgspec.DecodeError, ValueError):  # also numbers that are none, or no bytes
        return None
    if text is None or facility not in trusted:
        return None
    return KmsgRecord(-1, level, facility, at_us, text)


def read_journal(
    boot_id: str,
    after_us: int,
    trusted: tuple[int, ...],
    deadline_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> Past:
    """The kernel's messages of the boot `boot_id` later than `after_us` microseconds after it began.

    `meanwhile` is called every few milliseconds: reading the journal must not keep the ring from being read.
    Nothing is missing where the journal goes back to `after_us`, or to the first message of the boot.
    """
    program = shutil.which("journalctl")
    if program is None:
        return Past((), "the journal cannot be read: journalctl is not there")
    if not boot_id:
        return Past((), "the journal cannot be read: the id of this boot is not known")
    # Not -k and --boot: they look only at the journal of this machine id, which a container does not share.
    match = [f"_BOOT_ID={boot_id.replace('-', '')}", "_TRANSPORT=kernel"]
    command = [program, "--merge", "--no-pager", "--output=json", f"--output-fields={FIELDS}"]
    begun_s = time.monotonic()
    output, in_time = _run([*command, f"--lines={MAX_LINES}", *match], begun_s + deadline_s, meanwhile)
    problem = "" if in_time else f"the journal gave no answer within {deadline_s:g} s"
    records = []
    oldest_us: int | None = None
    for line in output.splitlines():
        record = _record(line, (*trusted, 0))
        if record is None:
            continue
        oldest_us = record.at_us if oldest_us is None else min(oldest_us, record.at_us)
        if record.at_us > after_us and record.facility in trusted:
            records.append(record)
    if not problem and oldest_us is None:
        problem = "the journal holds no kernel messages of this boot, or may not be read"
    elif not problem and oldest_us is not None and oldest_us > max(after_us, FIRST_US):
        problem = f"the journal begins {(oldest_us - after_us) / 1e6:.0f} s later"
    return Past(tuple(records), problem, in_time)


def _run(command: list[str], until_s: float, meanwhile: Callable[[], None]) -> tuple[bytes, bool]:
    """The output, and whether that is all of it. The program is killed with its group in either case."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    output = select.poll()  # select(2) knows no descriptor above 1023, and an agent may have more
    output.register(descriptor, select.POLLIN)
    chunks: list[bytes] = []
    size = 0
    try:
        while time.monotonic() < until_s and size < MAX_BYTES:
            meanwhile()
            if not output.poll(10):
                continue
            data = os.read(descriptor, 1 << 16)
            if not data:
                return b"".join(chunks), True
            chunks.append(data)
            size += len(data)
        return b"".join(chunks), False
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.stdout.close()
        process.wait()
