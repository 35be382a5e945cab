"""The kernel check at a log that behaves as /dev/kmsg: what is believed, what was missed, what came before."""

import asyncio
import errno
import fcntl
import functools
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sentinel.checks.base import Kept, Look
from sentinel.checks.kernel import messages
from sentinel.checks.runner import CheckRunner
from sentinel.checks.table import CHECKS
from sentinel.core.health import CheckResult, CheckState, Finding
from sentinel.logs.kmsg import KmsgReader, read_boot_id
from sentinel.logs.kmsg_drain import Drain
from sentinel.settings import Settings
from sentinel.util.clock import boot_id, system_now
from tests.gate.rights import needs_root
from tests.kernel_log import ENVIRONMENT, KernelLog
from tests.waits import eventually, until

SENTINEL = (sys.executable, "-m", "sentinel")
JOURNALD = "/lib/systemd/systemd-journald"


def xid(number: int, pci: str = "0000:18:00") -> str:
    return f"NVRM: Xid (PCI:{pci}): {number}, pid=7, name=python, text"


def now_us() -> int:
    """The kernel's clock: what is old would be history."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


@pytest.fixture
@needs_root
def log(tmp_path: Path) -> Iterator[KernelLog]:
    with KernelLog(tmp_path / "kmsg") as log:
        yield log


@pytest.fixture
@needs_root
def shadow() -> Iterator[KernelLog]:
    """The log is /dev/kmsg of a mount namespace."""
    with KernelLog() as log:
        yield log


def runner_at(log: KernelLog, on_result: Callable[[CheckResult], None] | None = None) -> CheckRunner:
    rows = [row for row in CHECKS if row.name == "kernel"]
    return CheckRunner(Settings(kernel_log=str(log.path)), checks=rows, on_result=on_result)


def sample(runner: CheckRunner) -> CheckResult:
    (result,) = asyncio.run(runner.check_now(["kernel"], max_age_s=-1))
    return result


def counts(result: CheckResult) -> dict[str, int]:
    return {finding.code: finding.count for finding in result.findings}


def journal(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    """From now on the journal holds these lines, of JSON."""
    program = folder / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def node_says(log: KernelLog, **environment: str) -> dict[str, Any]:
    """What `sentinel check kernel` prints where the log is /dev/kmsg."""
    # What an agent of this machine knows is not about this log.
    environment = {"SENTINEL_STATE_DIR": "/nonexistent", **environment}
    done = log.run(*SENTINEL, "check", "kernel", "-o", "json", **environment)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert answer["exit"] == done.returncode
    (check,) = answer["checks"]
    return {
        "exit": done.returncode,
        "state": check["state"],
        "detail": check.get("detail", ""),
        "findings": {finding["code"]: finding for finding in check.get("findings", [])},
    }


# ---------------------------------------------------------------- what is believed


def test_the_kernels_word_is_believed_and_a_users_word_in_the_kernels_log_is_not(shadow: KernelLog) -> None:
    shadow.log(xid(79), facility=1)
    shadow.log(f"kernel: {xid(48)}", facility=3)
    assert node_says(shadow)["exit"] == 0
    shadow.log(xid(79, "0000:2a:00"))
    answer = node_says(shadow)
    assert answer["exit"] == 2
    assert [(code, finding["entity"]) for code, finding in answer["findings"].items()] == [
        ("XID 79", "GPU 0000:2a:00.0")
    ]


def test_no_setting_names_the_facilities_that_are_trusted() -> None:
    assert not [name for name in Settings.__struct_fields__ if "facilit" in name or "trust" in name]


def test_odd_records_hide_no_fault_behind_them(log: KernelLog) -> None:
    runner = runner_at(log)
    log.raw(
        "3,0,1,-;cut off in the middl\n",
        "no record at all\n",
        "3,2,1,-;\n",
        "4,3,99999999999999999999999,-;NVRM: Xid (PCI:0000:3f:00): \\x\\xzz\\xff\\x00\n",
        "6,4,5,c;a piece of a li\n",
        "6,5,5,c;ne in pieces\n",
        "3,6,7,-,caller=T1;usb 1-1: gone\n SUBSYSTEM=usb\n DEVICE=+usb:NVRM: Xid (PCI:0000:3f:00): 79\n",
        f"3,7,7,-;{'x' * 9000}\n",
        f"3,8,7,-;{'NVRM: Xid (' * 700}\n",
    )
    log.log(xid(48))
    assert counts(sample(runner)) == {"XID 48": 1}
    assert runner.counters["kernel"]["garbled"] >= 2
    assert runner.counters["kernel"]["lost"] == 0
    runner.close()


# ---------------------------------------------------------------- what was missed


def test_overwritten_messages_are_counted_by_their_numbers_and_said(log: KernelLog) -> None:
    runner = runner_at(log)
    log.log("begin")
    assert sample(runner).state is CheckState.OK
    log.keep(10)
    log.log(*(f"noise {index}" for index in range(100)), xid(79))
    result = sample(runner)
    assert counts(result) == {"XID 79": 1, "kernel-log-lost": 1}
    assert [f.evidence for f in result.findings if f.code == "kernel-log-lost"] == [("91 messages",)]
    assert runner.counters["kernel"]["lost"] == 91
    log.log("calm again")
    assert counts(sample(runner)) == {"XID 79": 1, "kernel-log-lost": 1}  # not said a second time
    runner.close()


def test_a_log_that_cannot_be_read_is_unknown_until_it_can(log: KernelLog) -> None:
    runner = runner_at(log)
    log.log(xid(79))
    sample(runner)
    log.fail(errno.EIO)
    result = sample(runner)
    assert (result.state, counts(result)) == (CheckState.UNKNOWN, {"XID 79": 1})
    assert "Input/output error" in result.detail
    log.fail(0)
    log.log(xid(48))
    result = sample(runner)
    assert (result.state, counts(result)) == (CheckState.FOUND, {"XID 79": 1, "XID 48": 1})
    runner.close()


def test_without_permission_the_capability_is_named_and_what_is_not_seen(tmp_path: Path) -> None:
    """By a process that really lacks it: a child that gives up being root where this is root."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
            os.write(writes, KmsgReader("/proc/1/mem").problem.encode())
        finally:
            os._exit(0)
    os.close(writes)
    os.waitpid(child, 0)
    with os.fdopen(reads) as answers:
        problem = answers.read()
    assert "CAP_SYSLOG" in problem
    assert "not seen" in problem


# ---------------------------------------------------------------- restarts


def test_what_is_logged_while_the_agent_is_down_is_found_once(log: KernelLog) -> None:
    first = runner_at(log)
    log.log(xid(48), xid(13))
    sample(first)
    snapshot = first.snapshot()
    first.close()
    log.log(xid(13), xid(79))
    second = runner_at(log)
    second.restore(snapshot)
    assert counts(sample(second)) == {"XID 79": 1, "XID 48": 1, "XID 13": 2}
    second.close()


class Agent:
    """`sentinel agent` where the log is /dev/kmsg; a killed one is followed by the next."""

    def __init__(self, log: KernelLog, folder: Path) -> None:
        self.log, self.folder = log, folder
        self.settings = folder / "settings.yaml"
        self.settings.write_text("apiVersion: sentinel.dev/v1alpha1\nkind: Settings\nlisten: 127.0.0.1:0\n")

    def start(self) -> None:
        """Through exec to the end: the process id is the agent's own."""
        self.process = subprocess.Popen(
            self.log.command(*SENTINEL, "agent", "--settings", str(self.settings)),
            env={**ENVIRONMENT, "SENTINEL_STATE_DIR": str(self.folder)},
            stderr=subprocess.DEVNULL,
        )

    def knows(self) -> dict[str, int]:
        """The Xids that it has found so far, with counts; none before it serves."""
        try:
            presence = json.loads((self.folder / "agent/sentinel.json").read_text())
            if presence["pid"] != self.process.pid or not presence.get("url"):
                return {}
            with urllib.request.urlopen(presence["url"] + "/findings", timeout=10) as answer:
                found = json.load(answer)["findings"]
        except OSError:
            return {}
        return {finding["code"]: finding.get("count", 1) for finding in found if "XID" in finding["code"]}

    def wait_until_it_knows(self, expected: dict[str, int]) -> None:
        until(lambda: self.knows() == expected, lambda: str(self.knows()))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_a_killed_agent_is_followed_by_one_that_loses_and_repeats_no_line(
    shadow: KernelLog, tmp_path: Path
) -> None:
    agent = Agent(shadow, tmp_path)
    state = tmp_path / "agent" / "state.json"
    agent.start()
    try:
        shadow.log(xid(79), facility=1)
        shadow.log(xid(48), xid(13))
        agent.wait_until_it_knows({"XID 48": 1, "XID 13": 1})
        until(lambda: state.exists() and b"XID 13" in state.read_bytes(), "it is not saved")
        agent.kill()
        shadow.log(xid(13), xid(95))
        agent.start()
        agent.wait_until_it_knows({"XID 95": 1, "XID 48": 1, "XID 13": 2})
        shadow.log(xid(13))
        agent.wait_until_it_knows({"XID 95": 1, "XID 48": 1, "XID 13": 3})
    finally:
        agent.kill()


def test_a_sample_that_came_back_after_its_deadline_still_tells_what_happened(
    log: KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are out of the ring: nobody reads them a second time."""
    hold, ended = threading.Event(), threading.Event()
    really = messages.check

    def late(look: Look) -> list[Finding]:
        found = really(look)
        hold.wait(180)
        ended.set()
        return found

    (row,) = [row for row in CHECKS if row.name == "kernel"]
    runner = CheckRunner(
        Settings(kernel_log=str(log.path)), checks=[msgspec.structs.replace(row, deadline_s=0.05)]
    )
    log.log(xid(79))

    async def story() -> CheckResult:
        monkeypatch.setattr(messages, "check", late)
        (result,) = await runner.check_now(["kernel"], max_age_s=-1)
        assert result.state is CheckState.UNKNOWN
        hold.set()
        return await eventually(known, deadline_s=20.0)

    async def known() -> CheckResult | None:
        (result,) = await runner.check_now(["kernel"], max_age_s=-1)
        return None if result.state is CheckState.UNKNOWN else result

    assert counts(asyncio.run(story())) == {"XID 79": 1}
    runner.close()


# ---------------------------------------------------------------- before the start: the journal


def start_journald(log: KernelLog, *, boot: str = "") -> None:
    """A real journald takes over what the log holds, as one of the boot `boot` where given."""
    own = "/proc/sys/kernel/random/boot_id"
    for step in (
        "mount -t tmpfs journal /run && mkdir -p /run/systemd/journal /run/log/journal",
        "mkdir -p /var/log/journal && mount -t tmpfs journal /var/log/journal",
        f"echo {boot} > /run/boot && mount --bind /run/boot {own}" if boot else "true",
    ):
        assert log.run("sh", "-c", step).returncode == 0
    process = subprocess.Popen(log.command(JOURNALD), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end_s = time.monotonic() + 20
        while not log.run("journalctl", "-mqo", "cat", "-g", "end of the part").stdout.strip():
            assert time.monotonic() < end_s, "journald read nothing"
    finally:
        process.terminate()
        process.wait()
        if boot:
            assert log.run("umount", own).returncode == 0


def test_what_the_ring_lost_before_the_start_comes_from_the_journal_each_line_once(shadow: KernelLog) -> None:
    now = now_us()
    shadow.log("Linux version", at_us=0)
    shadow.log(xid(79), at_us=now)
    shadow.log(xid(94), facility=1, at_us=now + 1)  # journald writes these down too
    shadow.log(xid(48, "0000:2a:00"), at_us=now + 2)
    shadow.log(xid(31), at_us=now + 3)
    shadow.log("end of the part", at_us=now + 4)
    start_journald(shadow)
    shadow.keep(2)  # 31 is in both
    answer = node_says(shadow)
    assert {code: finding.get("count", 1) for code, finding in answer["findings"].items()} == {
        "XID 79": 1,
        "XID 48": 1,
        "XID 31": 1,
    }, answer["findings"].get("kernel-log-lost", {}).get("evidence")
    assert answer["exit"] == 2


def test_lines_of_an_earlier_boot_in_the_journal_are_no_faults_of_this_one(shadow: KernelLog) -> None:
    shadow.log(xid(79), at_us=now_us())
    shadow.log("end of the part", at_us=now_us())
    start_journald(shadow, boot=str(uuid.uuid4()))
    shadow.keep(1)
    answer = node_says(shadow)
    assert set(answer["findings"]) == {"kernel-log-lost"}
    assert "no kernel messages of this boot" in answer["findings"]["kernel-log-lost"]["evidence"][0]


def test_a_machine_without_a_journal_says_what_cannot_be_known(shadow: KernelLog, tmp_path: Path) -> None:
    shadow.skip(500)
    shadow.log(xid(48))
    answer = node_says(shadow, PATH=str(tmp_path))
    assert set(answer["findings"]) == {"XID 48", "kernel-log-lost"}
    (evidence,) = answer["findings"]["kernel-log-lost"]["evidence"]
    assert evidence.startswith("500 messages before the start")
    assert "journalctl is not there" in evidence


def test_a_journal_that_hangs_is_given_up_in_time_and_asked_once_more(
    log: KernelLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of that name which answers only its second caller."""
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    entries = [
        {"MESSAGE": text, "PRIORITY": "3", "SYSLOG_FACILITY": "0", "_SOURCE_MONOTONIC_TIMESTAMP": str(at_us)}
        for text, at_us in (("Linux version", 0), (xid(79), now_us()))
    ]
    lines = "\n".join(json.dumps(entry) for entry in entries)
    program.write_text(
        f"#!/bin/sh\nif mkdir {tmp_path}/asked 2>/dev/null; then sleep 100; fi\ncat <<'END'\n{lines}\nEND\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(messages, "JOURNAL_DEADLINE_S", 0.3)
    log.skip(3)
    log.log(xid(48))
    runner = runner_at(log)
    result = sample(runner)
    assert counts(result) == {"XID 48": 1}
    assert "no answer within" in result.detail
    result = sample(runner)
    assert counts(result) == {"XID 79": 1, "XID 48": 1}
    assert result.detail == ""
    runner.close()


@pytest.mark.usefixtures("many_files")
def test_an_agent_that_holds_many_files_open_reads_the_journal(
    log: KernelLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [
        {"MESSAGE": text, "PRIORITY": "3", "SYSLOG_FACILITY": "0", "_SOURCE_MONOTONIC_TIMESTAMP": str(at_us)}
        for text, at_us in (("Linux version", 0), (xid(79), now_us()))
    ]
    journal(tmp_path, monkeypatch, "\n".join(map(json.dumps, entries)))
    log.skip(3)
    log.log(xid(48))
    runner = runner_at(log)
    assert counts(sample(runner)) == {"XID 79": 1, "XID 48": 1}
    runner.close()


def test_after_a_restart_the_journal_fills_only_what_was_logged_meanwhile(
    log: KernelLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, now = runner_at(log), now_us()
    log.log("Linux version", at_us=0)
    log.log(xid(13), at_us=now + 1_000)
    sample(first)
    snapshot = first.snapshot()
    first.close()
    log.log(xid(79), at_us=now + 2_000)
    log.log(xid(48), at_us=now + 3_000)
    log.keep(1)
    entries = [
        {"MESSAGE": text, "PRIORITY": "3", "SYSLOG_FACILITY": "0", "_SOURCE_MONOTONIC_TIMESTAMP": str(at_us)}
        for text, at_us in (
            ("Linux version", 0),
            (xid(13), now + 1_000),
            (xid(79), now + 2_000),
            (xid(48), now + 3_000),
        )
    ]
    lines = "\n".join(json.dumps(entry) for entry in (*entries, *entries[:3]))  # twice, as in two files
    journal(tmp_path, monkeypatch, f'{lines}\n{{"MESSAGE": [300], cut')
    second = runner_at(log)
    second.restore(snapshot)
    assert counts(sample(second)) == {"XID 79": 1, "XID 48": 1, "XID 13": 1}
    second.close()


# ---------------------------------------------------------------- the ring itself


def write_to_the_ring(lines: list[str]) -> None:
    """printk_devkmsg=ratelimit lets one open file write about ten records: each few get a new one."""
    for start in range(0, len(lines), 5):
        descriptor = os.open("/dev/kmsg", os.O_WRONLY)
        try:
            for line in lines[start : start + 5]:
                os.write(descriptor, f"<6>{line}\n".encode())
        finally:
            os.close(descriptor)


WRITER = """
import os, sys
for start in range(0, 3000, 5):
    if start % 300 == 0:
        sys.stdin.read(1)
    descriptor = os.open("/dev/kmsg", os.O_WRONLY)
    for number in range(start, start + 5):
        os.write(descriptor, b"<6>sentinel test line %d %s\\n" % (number, b"x" * 100))
    os.close(descriptor)
"""


@pytest.mark.root
def test_the_ring_is_emptied_while_everybody_else_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times what the smallest ring holds is written while the event loop computes and lets nobody else.

    In ten pieces, each when the one before it was taken out: how fast that goes is for the benchmark to say.
    """
    monkeypatch.setattr(messages, "check", functools.partial(messages.check, trusted=(0, 1)))
    runner = CheckRunner(Settings(), checks=[row for row in CHECKS if row.name == "kernel"])
    card = f"{time.time_ns() // 1_000_000_000 % 0xFFFF:04x}"  # what an earlier run wrote is still in the ring

    def compute_until_all_is_taken_out(drain: Drain) -> None:
        command = [sys.executable, "-c", WRITER]
        deadline = time.monotonic() + 30
        with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as writer:
            assert writer.stdin is not None
            for piece in range(10):
                writer.stdin.write(b"+")
                while waiting_bytes(drain) < 300 * 130 * (piece + 1):
                    assert time.monotonic() < deadline, f"piece {piece}: {waiting_bytes(drain)} taken out"
                    sum(range(100_000))

    async def story() -> None:
        running = asyncio.create_task(runner.run())
        compute_until_all_is_taken_out(await drain_of(runner))
        write_to_the_ring([xid(79, f"{card}:18:00")])
        wanted = f"GPU {card}:18:00.0"
        await eventually(lambda: wanted in {finding.entity for finding in runner.book.active()})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 120))
    assert runner.counters["kernel"]["lost"] == 0


def waiting_bytes(drain: Drain) -> int:
    """What the child has put into the pipe."""
    return int.from_bytes(fcntl.ioctl(drain.wake_fd, termios.FIONREAD, b"1234"), sys.byteorder)


async def drain_of(runner: CheckRunner) -> Drain:
    """Of a runner that runs, once its child was started."""
    memory = runner._running["kernel"].kept.own(messages.Memory)
    await eventually(lambda: memory.drain is not None and memory.drain.works)
    assert memory.drain is not None
    return memory.drain


def test_a_child_that_is_killed_costs_no_fault_and_is_followed_by_another(
    log: KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "NEXT_CHILD_S", 0.0)
    runner = runner_at(log)

    async def story() -> None:
        running = asyncio.create_task(runner.run())
        for bus in range(0x18, 0x1C):
            drain = await drain_of(runner)
            child = drain.pid
            assert child is not None
            os.kill(child, signal.SIGKILL)
            log.log(xid(79, f"0000:{bus:02x}:00"))
            while f"GPU 0000:{bus:02x}:00.0" not in {finding.entity for finding in runner.book.active()}:
                await runner.check_now(["kernel"], max_age_s=-1)
            while drain.pid == child or not drain.works:
                await runner.check_now(["kernel"], max_age_s=-1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 120))
    assert runner.counters["kernel"]["lost"] == 0


def test_who_waits_for_what_was_logged_until_now_waits_for_a_child_that_had_no_turn(log: KernelLog) -> None:
    runner = runner_at(log)

    async def story() -> None:
        running = asyncio.create_task(runner.run())
        child = (await drain_of(runner)).pid
        assert child is not None
        os.kill(child, signal.SIGSTOP)
        until(lambda: ") T " in Path(f"/proc/{child}/stat").read_text(), "it runs")
        log.log(xid(79, "0000:18:00"))
        asyncio.get_running_loop().call_later(0.2, os.kill, child, signal.SIGCONT)
        found = await runner.check_anew("kernel")
        assert [finding.entity for finding in found.findings] == ["GPU 0000:18:00.0"]
        os.kill(child, signal.SIGSTOP)
        assert (await runner.check_anew("kernel")).findings, "the wait has an end"
        os.kill(child, signal.SIGCONT)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 120))


HOLDER = """
import sys, time
from sentinel.logs.kmsg import KmsgReader
from sentinel.logs.kmsg_drain import Drain
drain = Drain(KmsgReader(sys.argv[1]))
drain.start()
print(drain.pid, flush=True)
time.sleep(60)
"""


def test_the_child_of_a_killed_agent_ends(log: KernelLog) -> None:
    command = [sys.executable, "-c", HOLDER, str(log.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as agent:
        assert agent.stdout is not None
        child = int(agent.stdout.readline())
        # The kernel shows no command while it starts the program.
        until(lambda: "kmsg_child" in Path(f"/proc/{child}/cmdline").read_text(), "no child")
        agent.kill()
    until(lambda: not Path(f"/proc/{child}").exists(), "the child outlived its agent")


def test_a_reader_is_let_go_of_once(log: KernelLog) -> None:
    """What is closed twice closes what somebody else has opened since."""
    reader = KmsgReader(str(log.path))
    drain = Drain(reader)
    drain.start()
    drain.close()
    others = [os.open("/dev/null", os.O_RDONLY) for _ in range(4)]
    drain.close()
    reader.close()
    for descriptor in others:
        os.close(descriptor)


def test_a_backlog_that_is_full_leaves_the_rest_in_the_ring_and_loses_nothing(
    log: KernelLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sentinel.logs.kmsg.BACKLOG_BYTES", 1000)
    reader = KmsgReader(str(log.path))
    log.log(*(f"line {index}" for index in range(100)))
    reader.drain()
    assert reader.full
    assert reader.waiting < 20
    texts: list[str] = []
    while records := reader.read():
        texts += [record.text for record in records]
    assert texts == [f"line {index}" for index in range(100)]
    assert not reader.full
    reader.close()


def test_stopping_leaves_no_process_and_no_descriptor_behind(log: KernelLog) -> None:
    before = len(os.listdir("/proc/self/fd"))
    runner = runner_at(log)
    log.log(xid(79))

    async def story() -> int:
        running = asyncio.create_task(runner.run())
        child = (await drain_of(runner)).pid
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert child is not None
        return child

    child = asyncio.run(asyncio.wait_for(story(), 120))
    assert not Path(f"/proc/{child}").exists()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.root
def test_the_ring_of_this_machine_is_read_with_the_users_facility_let_in() -> None:
    kept = Kept()
    trusted = KmsgReader("/dev/kmsg")
    trusted.read()
    position = trusted.position
    trusted.close()
    kept.saved = {"boot_id": position.boot_id, "sequence": position.sequence, "at_us": position.at_us}
    bus = f"{os.getpid() & 0xFF:02x}"  # another run of the tests may write to the same ring
    cards = [f"00{index:02x}:{bus}:00" for index in range(40)]
    write_to_the_ring([xid(79, card) for card in cards])
    look = Look(Settings(), (), system_now(), boot_id(), kept)
    found = messages.check(look, trusted=(0, 1))
    ours = [finding.entity for finding in found if f":{bus}:" in finding.entity]
    assert ours == [f"GPU {card}.0" for card in cards]
    assert kept.counters["lost"] == 0
    kept.close()
    assert messages.check(look) == []  # nothing new, and nothing of it would be believed
    assert read_boot_id() == kept.saved["boot_id"]
    kept.close()
