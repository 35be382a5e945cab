"""What a start order holds: the program, the ranks' variables, a fresh port, and what a refusal means."""

import errno
import os
import random
import socket
from pathlib import Path

from sentinel.core.model import Launch
from sentinel.util.errors import PermanentError, TemporaryError

PORTS_FROM = 20000  # below the range that the kernel hands to outgoing connections
TEMPORARY = {errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EBUSY}
REASONS = {
    "exec": {
        errno.ENOENT: "CommandNotFound",
        errno.EACCES: "CommandNotExecutable",
        errno.ENOEXEC: "CommandNotExecutable",
        errno.E2BIG: "ArgumentsTooLong",
    },
    "cwd": {errno.ENOENT: "WorkingDirectoryGone"},
}
WHAT = {
    "exec": "cannot run {command!r}",
    "cwd": "cannot enter the working directory {cwd!r}",
    "log": "cannot write the log {log!r}",
    "status": "cannot keep exit statuses in {folder!r}",
    "busy": "processes of an earlier incarnation still run",
}


def free_port(other_than: int = 0) -> int:
    """A TCP port that nobody has bound, not among those the kernel picks by itself."""
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        low = 32768
    for _ in range(200):
        port = random.randrange(PORTS_FROM, low) if low > PORTS_FROM + 1000 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            if probe.getsockname()[1] != other_than:
                return int(probe.getsockname()[1])
    raise TemporaryError("no free TCP port for the ranks to meet at")


def resolve_program(command: str, cwd: str, path: str) -> str:
    """As a shell looks it up. A file that is found but may not be executed is returned: exec says why."""
    if "/" in command:
        return command
    unusable = ""
    for folder in path.split(":"):
        candidate = os.path.join(cwd, folder, command)
        if os.path.isfile(candidate):
            if os.access(candidate, os.X_OK):
                return candidate
            unusable = unusable or candidate
    if unusable:
        return unusable
    raise PermanentError(f"no such command: {command!r} is not in PATH", "CommandNotFound")


def rank_env(rank: int, size: int, port: int) -> dict[str, str]:
    """The variables with which PyTorch and its like find each other on one machine."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def order_fields(
    launch: Launch, incarnation: int, size: int, env: dict[str, str], run: str, port: int, logs: list[str]
) -> list[bytes]:
    """The fields of a start frame (see supervisor.py). Raises PermanentError for what no exec can take."""
    raw = {os.fsdecode(bytes.fromhex(name)): os.fsdecode(value) for name, value in launch.env_bytes.items()}
    common = {"PYTHONUNBUFFERED": "1", **launch.env, **raw, **env}
    command = launch.command[0]
    program = resolve_program(command, launch.cwd, common.get("PATH", os.defpath))
    fields = [str(incarnation), str(size), run, str(port), launch.cwd, program]
    fields += [str(len(launch.command)), *launch.command, *_block(common)]
    for rank, log_path in enumerate(logs):
        fields += [log_path, *_block(rank_env(rank, size, port) if launch.nproc is not None else {})]
    if any("\0" in field for field in fields):
        raise PermanentError("a command, path or variable holds a NUL character", "BadCommand")
    return [os.fsencode(field) for field in fields]


def _block(variables: dict[str, str]) -> list[str]:
    return [str(len(variables)), *(f"{name}={value}" for name, value in variables.items())]


def refusal(stage: str, number: int, **names: str) -> PermanentError | TemporaryError:
    """The error for a start that the supervisor refused at `stage` with an errno."""
    text = WHAT[stage].format(**names)
    if stage != "busy":
        text += f": {os.strerror(number)}"
    if stage == "exec" and number == errno.ENOENT and os.path.exists(names["program"]):
        text = f"cannot run {names['command']!r}: the interpreter that its first line names does not exist"
    if stage == "exec" and number == errno.ENOEXEC:
        text += " (a script needs a first line such as #!/bin/sh)"
    if number in TEMPORARY:
        return TemporaryError(text, 5.0)
    return PermanentError(text, REASONS.get(stage, {}).get(number, "CannotStart"))
