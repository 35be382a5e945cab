"""Starts a job for `sentinel run`: its record, its lock, its session. Heavier than the command's own module, which
imports this while a child reads the configuration."""

import argparse
import fcntl
import os
import re
import stat
import sys
import termios
import time

from sentinel.cluster.local.names import check_job_name
from sentinel.cluster.local.store import LocalStore
from sentinel.core.model import JobState, Launch, ProtectedJob
from sentinel.core.policy_model import Policy
from sentinel.local_run.protect import detached, open_store, protect, say
from sentinel.settings import Settings
from sentinel.util.errors import PermanentError


def start(args: argparse.Namespace, command: list[str], cwd: str, policy: Policy, settings: Settings) -> int:
    """Runs the job to its end. Returns the exit code; what was refused was said."""
    name = default_name(command) if args.name is None else args.name
    try:
        check_job_name(name)
    except PermanentError as error:
        say(str(error))
        return 64
    if policy.log_rules or policy.timing_formats or settings.rules_dir:
        from sentinel.logs.ruleset import load_ruleset
        from sentinel.rules.tables import RuleError

        try:
            load_ruleset(
                policy.log_rules, settings.rules_dir, settings.state_path / "cache", policy.timing_formats
            )
        except RuleError as error:
            print("\n".join(error.problems), file=sys.stderr)
            return 78
    try:
        launch = describe(command, cwd, args.nproc)
    except UnicodeEncodeError as error:
        say(f"{error.object!r} is not UTF-8: the command and its directory must be")
        return 64
    return _start(args, name, launch, policy, settings)


def input_waits() -> bool:
    """Is something given on standard input, by a file or a pipe?"""
    try:
        found = os.fstat(0)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > os.lseek(0, 0, os.SEEK_CUR)
        if not stat.S_ISFIFO(found.st_mode):
            return False
        count = fcntl.ioctl(0, termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder) > 0
    except OSError:
        return False


def default_name(command: list[str]) -> str:
    """The script's name where there is one, else the program's."""
    script = next((word for word in command[1:] if word.endswith((".py", ".sh"))), command[0])
    base = re.sub(r"[^a-z0-9.-]+", "-", os.path.basename(script).lower().rsplit(".", 1)[0]).strip("-.")
    return base[:50].rstrip("-.") or "job"


def describe(command: list[str], cwd: str, nproc: int | None) -> Launch:
    """With this process's environment. Raises UnicodeEncodeError where the command or `cwd` is not UTF-8."""
    for word in (*command, cwd):
        word.encode()
    env, env_bytes = {}, {}
    for name, value in os.environb.items():
        try:
            env[name.decode()] = value.decode()
        except UnicodeDecodeError:
            env_bytes[name.hex()] = value
    return Launch(command=tuple(command), cwd=cwd, env=env, env_bytes=env_bytes, nproc=nproc)


def _start(args: argparse.Namespace, name: str, launch: Launch, policy: Policy, settings: Settings) -> int:
    from sentinel.service.control import Lock
    from sentinel.util.clock import boot_id

    store = open_store(settings)
    if store is None:
        return 73
    old = store.job(name)
    if old is not None and not old.state.final and not args.name and not args.adopt:
        name, old = _free_name(store, name)
    lock = Lock(settings.state_path / "jobs" / name)
    if args.adopt and old is not None and _runs(store, old):
        from sentinel.local_run.attach import attach

        store.close()
        return attach(settings, name, detach=args.detach)
    if (old is not None and _runs(store, old)) or not lock.take():
        say(f"a job named {name} is already running: `sentinel attach {name}`, or `sentinel run --adopt …`")
        store.close()
        return 73
    old = store.job(name)  # read again: what another Sentinel did before the lock was ours is final only now
    if old is not None and _runs(store, old):
        say(f"a job named {name} already runs: `sentinel attach {name}`, or `sentinel run --adopt …`")
        store.close()
        lock.release()
        return 73
    for note in policy.capped:
        say(note)
    if input_waits():
        say(
            "what is given on standard input reaches no rank, theirs is /dev/null: let the command read a file"
        )
    size = args.nproc or 1
    job = ProtectedJob(
        name=name,
        policy=policy,
        launch=launch,
        incarnation=old.incarnation if old else 0,
        incidents=old.incidents if old else 0,
        size=size,
        original_size=size,
        created_wall_s=time.time(),
        boot_id=boot_id(),
        sentence="Waits for its first start.",
    )
    store.save(jobs=[job])
    if not args.detach:
        return protect(job, settings, store, lock, fresh=True)
    # SQLite connections and locks are not for two processes: the child opens its own.
    store.close()
    lock.release()

    def work(on_ready: object) -> int:
        child_store = open_store(settings)
        child_lock = Lock(settings.state_path / "jobs" / name)
        if child_store is None or not child_lock.take():
            say(f"{name}: another Sentinel took the job")
            return 73
        return protect(job, settings, child_store, child_lock, fresh=True, on_ready=on_ready)  # type: ignore[arg-type]

    return detached(settings, name, work)


def _runs(store: LocalStore, job: ProtectedJob) -> bool:
    """Something of it may run, or is to run again. One that never came to its first start may be replaced."""
    if job.state != JobState.QUEUED:
        return not job.state.final
    return any(not incident.phase.final for incident in store.incidents(job.name))


def _free_name(store: LocalStore, name: str) -> tuple[str, ProtectedJob | None]:
    number = 2
    while (old := store.job(f"{name}-{number}")) is not None and not old.state.final:
        number += 1
    return f"{name}-{number}", old
