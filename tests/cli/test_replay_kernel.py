"""`sentinel replay --kernel` over the same story in every form in which kernel logs are saved."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sentinel.cli import main
from sentinel.replay.saved import NoLog, oldest_first, open_log

BOOTED_S = 1_725_018_000.0  # 2024-08-30 11:40:00 UTC
KERNEL, USER = 0, 1
# Seconds after the boot, who wrote it, what. Lines as in github.com/leptonai/gpud pull 46 and 1174, kubernetes
# issue 56891 and openzfs issue 15734; times and the pid of the killed process changed.
STORY = [
    (12.5, KERNEL, "NVRM: GPU at PCI:0000:cb:00: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375"),
    (
        12.75,
        KERNEL,
        "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, "
        "SM 0): Illegal Instruction Parameter",
    ),
    (
        13.0,
        KERNEL,
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
    ),
    (
        14.0,
        KERNEL,
        "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000002 caused by previous Xid 149",
    ),
    (15.0, USER, "NVRM: Xid (PCI:0000:3f:00): 79, GPU has fallen off the bus."),
    (16.0, KERNEL, "nfs: server 192.168.0.1 not responding, still trying"),
    (17.0, KERNEL, "nfs: server 192.168.0.1 OK"),
    (
        20.0,
        KERNEL,
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0-1,"
        "oom_memcg=/kubepods/pod95387fa4-da9c-11e7-9d36-5254b24cbf5e,"
        "task_memcg=/kubepods/pod95387fa4-da9c-11e7-9d36-5254b24cbf5e/6895a3e1,task=java,pid=28438,uid=0",
    ),
    (
        20.0,
        KERNEL,
        "Memory cgroup out of memory: Killed process 28438 (java) total-vm:20255636kB, anon-rss:466160kB",
    ),
    (900.0, KERNEL, "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus"),
]
FAULTS = {
    ("GPU 0000:44:00.0", "XID 79"): ("fatal", "RESTART_BM", 1, ""),
    ("192.168.0.1", "nfs-not-responding"): ("degraded", "CHECK_STORAGE", 1, "the kernel says so"),
    ("GPU 0000:cb:00.0", "XID 13"): ("warning", "RESTART_APP", 1, ""),
    ("pid 28438 (java)", "oom-kill"): ("warning", "ADD_MEMORY", 1, ""),
    ("GPU 0000:dc:00.0", "XID 45"): ("info", "WORKFLOW_XID_45", 2, ""),
}
Run = Callable[..., dict[str, Any]]


def wall(uptime_s: float) -> datetime:
    return datetime.fromtimestamp(BOOTED_S + uptime_s, UTC)


def local(uptime_s: float, form: str) -> str:
    """As a program prints it in the zone of this machine."""
    return wall(uptime_s).astimezone().strftime(form)


def tag(who: int) -> str:
    return "kernel" if who == KERNEL else "python[42]"


def micro(uptime_s: float) -> int:
    return int((BOOTED_S + uptime_s) * 1_000_000)


def entry(at: float, who: int, text: str) -> dict[str, str]:
    return {
        "__CURSOR": "s=1;i=2",
        "__REALTIME_TIMESTAMP": str(micro(at)),
        "_BOOT_ID": "9a4b",
        "_TRANSPORT": "kernel" if at % 2 or who == KERNEL else "stdout",  # users reach the kernel's log too
        "SYSLOG_FACILITY": str(who),
        "MESSAGE": text,
    }


def export(lines: list[tuple[float, int, str]]) -> bytes:
    parts = []
    for index, (at, who, text) in enumerate(lines):
        fields = [f"{k}={v}".encode() for k, v in entry(at, who, text).items() if k != "MESSAGE"]
        binary = index % 2 == 0  # journalctl writes a field with a newline or control characters so
        data = text.encode()
        fields.append(b"MESSAGE\n" + len(data).to_bytes(8, "little") + data if binary else b"MESSAGE=" + data)
        parts.append(b"\n".join(fields) + b"\n\n")
    return b"".join(parts)


FORMS: dict[str, Callable[[float, int, str], str]] = {
    "dmesg": lambda at, who, text: f"[{at:12.6f}] {text}" if who == KERNEL else f"<12>[{at:12.6f}] {text}",
    "dmesg -r": lambda at, who, text: f"<{who << 3 | 3}>[{at:12.6f}] {text}",
    "dmesg -x": lambda at, who, text: f"{'user' if who else 'kern'}  :err   : [{at:12.6f}] {text}",
    "dmesg -d": lambda at, who, text: f"<{who << 3 | 3}>[{at:12.6f} <    0.000015>] {text}",
    "dmesg with callers": lambda at, who, text: f"<{who << 3 | 3}>[{at:12.6f}][{f'T{who}':>6}] {text}",
    "dmesg -T -x with callers": lambda at, who, text: (
        f"{'user' if who else 'kern'}  :err   : [{local(at, '%a %b %e %H:%M:%S %Y')}] [T{who:05d}] {text}"
    ),
    "dmesg -T -x": lambda at, who, text: (
        f"{'user' if who else 'kern'}  :err   : [{local(at, '%a %b %e %H:%M:%S %Y')}] {text}"
    ),
    "dmesg iso -x": lambda at, who, text: (
        f"{'user' if who else 'kern'}  :err   : {wall(at).strftime('%Y-%m-%dT%H:%M:%S,%f+00:00')} {text}"
    ),
    "/dev/kmsg": lambda at, who, text: f"{who << 3 | 3},1234,{int(at * 1e6)},-;{text}",
    "rfc3164": lambda at, who, text: f"{local(at, '%b %e %H:%M:%S')} node7 {tag(who)}: {text}",
    "rfc3164 with pri": lambda at, who, text: (
        f"<{who << 3 | 3}>{local(at, '%b %e %H:%M:%S')} node7 {tag(who)}: {text}"
    ),
    "rsyslog iso": lambda at, who, text: (
        f"{wall(at).isoformat(timespec='microseconds')} node7 {tag(who)}: {text}"
    ),
    "rfc5424": lambda at, who, text: (
        f"<{who << 3 | 3}>1 {wall(at).strftime('%Y-%m-%dT%H:%M:%S.%fZ')} node7 "
        f"{'kernel' if who == KERNEL else 'app'} - - "
        f'[timeQuality tzKnown="1" note="a \\] b"] {text}'
    ),
    "journal short": lambda at, who, text: f"{local(at, '%b %d %H:%M:%S')} node7 {tag(who)}: {text}",
    "journal short-iso": lambda at, who, text: f"{local(at, '%Y-%m-%dT%H:%M:%S%z')} node7 {tag(who)}: {text}",
    "journal short-full": lambda at, who, text: (
        f"{wall(at).strftime('%a %Y-%m-%d %H:%M:%S')} UTC node7 {tag(who)}: {text}"
    ),
    "journal short-unix": lambda at, who, text: f"{BOOTED_S + at:.6f} node7 {tag(who)}: {text}",
    "journal verbose": lambda at, who, text: (
        f"{wall(at).strftime('%a %Y-%m-%d %H:%M:%S.%f')} UTC [s=9a4b;i=1;b=9a4b]\n"
        + "\n".join(f"    {key}={value}" for key, value in entry(at, who, text).items())
    ),
    "dmesg in colours": lambda at, who, text: (
        f"\x1b[32m<{who << 3 | 3}>[{at:12.6f}] \x1b[0m\x1b[33m{text[:5]}\x1b[0m{text[5:]}\r"
    ),
    "journal json": lambda at, who, text: json.dumps(entry(at, who, text)),
    "journal json-seq": lambda at, who, text: "\x1e" + json.dumps(entry(at, who, text)),
    "journal json-sse": lambda at, who, text: f"data: {json.dumps(entry(at, who, text))}\n",
    "journal short-iso-precise": lambda at, who, text: (
        f"{wall(at).strftime('%Y-%m-%dT%H:%M:%S.%f')}+0000 node7 {tag(who)}: {text}"
    ),
    "journal in colours": lambda at, who, text: (
        f"{wall(at).strftime('%Y-%m-%dT%H:%M:%S')}+0000 node7 {tag(who)}: "
        f"\x1b[0;1;31m\x1b[0;1;39m\x1b[0;1;31m{text}\x1b[0m"
    ),
    "rfc3164 with uptime": lambda at, who, text: (
        f"{local(at, '%b %e %H:%M:%S')} node7 {tag(who)}: "
        + (f"[{at:12.6f}] " if who == KERNEL else "")
        + text
    ),
    "rsyslog iso with uptime": lambda at, who, text: (
        f"{wall(at).isoformat(timespec='microseconds')} node7 {tag(who)}: "
        + (f"[{at:12.6f}] " if who == KERNEL else "")
        + text
    ),
    "busybox": lambda at, who, text: (
        f"{local(at, '%b %e %H:%M:%S')} node7 {'kern.err' if who == KERNEL else 'user.err'} {tag(who)}: {text}"
    ),
    "journal json-pretty": lambda at, who, text: json.dumps(entry(at, who, text), indent=8).replace(
        '":', '" :'
    ),
}
DATED = {
    form
    for form in FORMS
    if form
    not in (
        "dmesg",
        "dmesg -r",
        "dmesg -x",
        "dmesg -d",
        "dmesg in colours",
        "dmesg with callers",
        "/dev/kmsg",
    )
}


def dmesg_json(lines: list[tuple[float, int, str]]) -> str:
    objects = ",".join(
        f'{{\n         "pri": {who << 3 | 3},\n         "time": {at:12.6f},\n'
        f'         "msg": {json.dumps(text)}\n      }}'
        for at, who, text in lines
    )
    return f'{{\n   "dmesg": [\n      {objects}\n   ]\n}}\n'


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def replay(*files: object, code: int = 0) -> dict[str, Any]:
        arguments = [part for file in files for part in ("--kernel", str(file))]
        assert main(["replay", *arguments, "-o", "json"]) == code
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        return answer

    return replay


def told(answer: dict[str, Any]) -> dict[tuple[str, str], tuple[str, str, int, str]]:
    return {
        (fault["entity"], fault["code"]): (
            fault["severity"],
            fault["action"],
            fault["count"],
            fault["ended_by"],
        )
        for fault in answer["faults"]
    }


def write(folder: Path, text: str | bytes, name: str = "kern.log") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("form", FORMS)
def test_every_line_format_tells_the_same_faults(form: str, tmp_path: Path, run: Run) -> None:
    answer = run(write(tmp_path, "".join(FORMS[form](*line) + "\n" for line in STORY)))
    assert told(answer) == FAULTS
    assert (answer["lines"], answer["unbelieved"], answer["boots"]) == (len(STORY), 1, 1)
    by_code = {fault["code"]: fault for fault in answer["faults"]}
    killed, off = by_code["oom-kill"], by_code["XID 79"]
    assert killed["job"] == "pod 95387fa4-da9c-11e7-9d36-5254b24cbf5e"
    assert (killed["pid"], killed["process"]) == (28438, "java")
    assert by_code["XID 13"]["uuid"] == "GPU-efbdfde9-5798-a6e7-4c46-12518fa15375"
    tells_year = form not in ("journal short", "busybox") and "3164" not in form
    if form in DATED and tells_year:
        assert off["first_wall_s"] == BOOTED_S + 900
    if form not in DATED:
        assert off["last_uptime_s"] == 900.0


UNTOLD = FAULTS | {("GPU 0000:3f:00.0", "XID 79"): ("fatal", "RESTART_BM", 1, "")}  # no word of who wrote it


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        ("", UNTOLD),
        ("-r", FAULTS),
        ("-x", FAULTS),
        ("-x -t", FAULTS),
        ("-x -d", FAULTS),
        ("-T", UNTOLD),
        ("-T -x", FAULTS),
        ("-T -x --color=always", FAULTS),
        ("-H --nopager", UNTOLD),
        ("-H --nopager --color=always -x", FAULTS),
        ("--time-format iso", UNTOLD),
        ("--time-format iso -x --color=always", FAULTS),
        ("--time-format delta", UNTOLD),
        ("--time-format reltime -x", FAULTS),
        ("--time-format notime", UNTOLD),
        ("-J", UNTOLD),
        ("-J -x", FAULTS),
    ],
)
def test_what_dmesg_itself_prints_is_read_with_all_its_options(
    options: str, faults: object, tmp_path: Path, run: Run
) -> None:
    saved = write(tmp_path, "".join(FORMS["dmesg -r"](*line) + "\n" for line in STORY), "raw")
    printed = subprocess.run(
        ["dmesg", "-F", str(saved), *options.split()], capture_output=True, check=True, timeout=60
    )
    assert told(run(write(tmp_path, printed.stdout))) == faults


@pytest.mark.parametrize(
    "stamp", ["Fri Aug 30 11:55:00 2024", "Fri Aug 30 11:55:00 UTC 2024", "Fri Aug 30 11:55:00 -03 2024"]
)
def test_the_log_of_a_crashed_kernel_is_read(stamp: str, tmp_path: Path, run: Run) -> None:
    """`log -T` of crash and vmcore-dmesg: as dmesg, with the name of a time zone."""
    (fault,) = run(write(tmp_path, f"[{stamp}] {STORY[-1][2]}\n"))["faults"]
    assert (fault["code"], fault["entity"]) == ("XID 79", "GPU 0000:44:00.0")
    assert datetime.fromtimestamp(fault["first_wall_s"]).isoformat() == "2024-08-30T11:55:00"


@pytest.mark.parametrize(
    "form",
    [
        "Aug 30 11:43:09 node7 python: kernel: {}",
        "Aug 30 11:43:09 python: kernel: {}",  # journalctl --no-hostname
        "Aug 30 11:43:09 node7 python[42]: kernel: {}",
        "Aug 30 11:43:09 node7 user.err kernel: {}",
        "2024-08-30T11:43:09.000000+00:00 node7 python: kernel: {}",
        '{{"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "1", "SYSLOG_IDENTIFIER": "x", "MESSAGE": "{}"}}',
        "__CURSOR=s\n_TRANSPORT=kernel\nSYSLOG_FACILITY=1\nMESSAGE={}\n",
    ],
)
def test_who_calls_himself_the_kernel_is_not_believed(form: str, tmp_path: Path, run: Run) -> None:
    answer = run(write(tmp_path, form.format(STORY[-1][2]) + "\n"))
    assert told(answer) == {}
    assert answer["unbelieved"] == 1


def test_an_export_of_the_journal_and_dmesgs_json_are_read_too(tmp_path: Path, run: Run) -> None:
    assert told(run(write(tmp_path, export(STORY)))) == FAULTS
    assert told(run(write(tmp_path, dmesg_json(STORY)))) == FAULTS


def test_a_packed_file_is_read_and_one_that_was_cut_off_as_far_as_it_goes(tmp_path: Path, run: Run) -> None:
    text = "".join(FORMS["dmesg"](*line) + "\n" for line in STORY).encode()
    assert told(run(write(tmp_path, gzip.compress(text), "kern.log.1.gz"))) == FAULTS
    noise = "".join(f"[{k:12.6f}] usb 1-1: {k * 2654435761 % 2**32:08x}\n" for k in range(20_000)).encode()
    packed = gzip.compress(text + noise)
    cut = run(write(tmp_path, packed[: len(packed) // 2], "cut.gz"))
    assert set(told(cut)) == set(FAULTS)
    assert any("cut off" in note for note in cut["notes"])


def test_standard_input_is_read(tmp_path: Path) -> None:
    text = "".join(FORMS["rfc3164"](*line) + "\n" for line in STORY).encode()
    for data in (text, gzip.compress(text)):
        done = subprocess.run(
            [sys.executable, "-m", "sentinel", "replay", "--kernel", "-", "-o", "json"],
            input=data,
            capture_output=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        assert told(json.loads(done.stdout)) == FAULTS


def test_lines_that_are_shown_below_each_other_are_one_message(tmp_path: Path, run: Run) -> None:
    """As in github.com/NVIDIA/NVSentinel issue 155: the driver's message has three lines and no Xid."""
    text = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
    )
    assert list(told(run(write(tmp_path, text)))) == [("GPU 0000:b3:00.0", "XID 79")]


def test_a_new_boot_ends_what_it_repairs_and_keeps_the_rest(tmp_path: Path, run: Run) -> None:
    first = "[    0.000000] Linux version 6.8.0-45-generic\n" + FORMS["dmesg"](*STORY[-1]) + "\n"
    memory = "[ 901.000000] EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0)\n"
    last = "[    0.000000] Linux version 6.8.0-45-generic\n[    3.000000] e1000e: Intel(R) PRO/1000\n"
    answer = run(write(tmp_path, first + memory + last))
    assert answer["boots"] == 2
    assert {fault["code"]: fault["ended_by"] for fault in answer["faults"]} == {
        "XID 79": "a new boot",
        "memory-uncorrected": "",
    }


def test_a_reset_that_the_driver_tells_ends_what_asked_for_it(tmp_path: Path, run: Run) -> None:
    said = "NVRM: Xid (PCI:0000:cb:00): 154, GPU recovery action changed from {} to {}"
    asked, nothing = "0x1 (GPU Reset Required)", "0x0 (None)"
    lines = [
        "NVRM: Xid (PCI:0000:cb:00): 119, pid=7, name=a, Timeout after 6s of waiting for RPC response",
        said.format(nothing, asked),
        said.format(asked, nothing),
    ]
    text = "".join(f"[{at + 1:12.6f}] {line}\n" for at, line in enumerate(lines))
    ends = {fault["code"]: fault["ended_by"] for fault in run(write(tmp_path, text))["faults"]}
    assert ends == {"XID 119": "the kernel says so", "XID 154": ""}


def test_several_files_are_one_log(tmp_path: Path, run: Run) -> None:
    lines = [FORMS["rsyslog iso"](*line) + "\n" for line in STORY]
    older, newer = write(tmp_path, "".join(lines[:4]), "1"), write(tmp_path, "".join(lines[4:]), "0")
    assert told(run(older, newer)) == FAULTS


def test_the_files_of_a_rotated_log_are_read_in_the_order_of_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [FORMS["rsyslog iso"](*line) + "\n" for line in STORY]
    write(tmp_path, gzip.compress("".join(lines[:4]).encode()), "kern.log.2.gz")
    write(tmp_path, "".join(lines[4:7]), "kern.log.1")
    write(tmp_path, "".join(lines[7:]), "kern.log")
    given = sorted(str(path) for path in tmp_path.iterdir())  # as kern.log* of a shell
    assert main(["replay", "--kernel", *given, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert told(answer) == FAULTS
    assert answer["files"] == [f"{tmp_path}/kern.log{end}" for end in (".2.gz", ".1", "")]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("m m.1 m.10.gz m.2.gz", "m.10.gz m.2.gz m.1 m"),
        ("m m-20240901 m-20240908.gz", "m-20240901 m-20240908.gz m"),
        ("b a", "b a"),
        ("b.1 a.2", "b.1 a.2"),
        ("m m", "m m"),
        ("- m", "- m"),
    ],
)
def test_only_rotated_files_are_put_in_order(given: str, read: str) -> None:
    assert oldest_first(given.split()) == read.split()


def test_a_line_that_syslog_folded_counts_as_often_as_it_says(tmp_path: Path, run: Run) -> None:
    text = FORMS["rfc3164"](1.0, KERNEL, f"message repeated 5 times: [ {STORY[2][2]}]\n")
    assert told(run(write(tmp_path, text)))["GPU 0000:dc:00.0", "XID 45"][2] == 5


def test_a_flood_is_one_fault_each_with_a_count(tmp_path: Path, run: Run) -> None:
    lines = [
        f"[{k / 1000:12.6f}] NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch {k:08x}\n"
        for k in range(20_000)
    ]
    lines.insert(7000, "[    7.000000] NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus\n")
    counts = {fault["code"]: fault["count"] for fault in run(write(tmp_path, "".join(lines)))["faults"]}
    assert counts == {"XID 45": 20_000, "XID 79": 1}


def test_a_log_of_a_machine_that_lost_its_power_is_read_over_the_hole(tmp_path: Path, run: Run) -> None:
    text = FORMS["rsyslog iso"](*STORY[1]) + "\n" + "\0" * 4096 + FORMS["rsyslog iso"](*STORY[-1]) + "\n"
    assert [fault["code"] for fault in run(write(tmp_path, text))["faults"]] == ["XID 79", "XID 13"]


@pytest.mark.parametrize("form", ["rfc3164", "dmesg -r", "journal short-iso", "/dev/kmsg"])
def test_a_log_that_another_system_saved_is_read(form: str, tmp_path: Path, run: Run) -> None:
    """As PowerShell redirects it (UTF-16 with a mark), with the line ends of Windows."""
    text = "".join(FORMS[form](*line) + "\r\n" for line in STORY)
    assert told(run(write(tmp_path, text.encode("utf-16")))) == FAULTS
    assert told(run(write(tmp_path, text.encode("utf-8-sig")))) == FAULTS


def test_a_healthy_log_has_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "[    1.000000] e1000e: Intel(R) PRO/1000\n")
    assert main(["replay", "--kernel", str(path)]) == 0
    assert "No fault." in capsys.readouterr().out


def test_the_text_for_people_names_action_bucket_and_what_would_be_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "[    9.000000] NVRM: Xid (PCI:0000:cb:00): 48, pid=7, name=a\x1b[2Jb, DBE\n")
    assert main(["replay", "--kernel", str(path)]) == 0
    out = capsys.readouterr().out
    assert "isolates the GPU at once; saves and moves its job" in out
    assert "RESET_GPU: reset the GPU" in out
    assert "NVIDIA: WORKFLOW_XID_48" in out
    assert "9.0 s after boot" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (bytes(range(256)) * 64, "binary, not a log"),
        (b"\xfd7zXZ\0 and so on", "xz -dc"),
        (b"LPKSHHRH and so on", "journalctl --file"),
        (b"root:x:0:0:root:/root:/bin/bash\n", "no line of a kernel log"),
        (b"__CURSOR=s\nMESSAGE\n" + b"\xff" * 64, "damaged journal export"),
        (b"\x1f\x8b and no gzip", "unknown compression method"),
        (gzip.compress(b"x" * 99)[:10] + b"\xff" * 99, "damaged"),
    ],
)
def test_what_is_no_kernel_log_is_refused_with_a_reason(
    content: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--kernel", str(write(tmp_path, content))]) == 1
    assert says in capsys.readouterr().err.lower()


def test_a_file_that_ends_in_the_middle_of_a_line_says_so(tmp_path: Path, run: Run) -> None:
    """Of "79" may be left "7"."""
    answer = run(write(tmp_path, "[    1.000000] NVRM: Xid (PCI:0000:3f:00): 7"))
    assert [fault["code"] for fault in answer["faults"]] == ["XID 7"]
    assert any("may be cut off" in note for note in answer["notes"])
    assert run(write(tmp_path, "[    1.000000] NVRM: Xid (PCI:0000:3f:00): 79\n"))["notes"] == []


@pytest.mark.parametrize("content", [b"", b"\n \n\n"])
def test_an_empty_file_is_no_healthy_log(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--kernel", str(write(tmp_path, content))]) == 1
    assert "kern.log: empty" in capsys.readouterr().err


def test_a_line_of_a_megabyte_hides_no_other(tmp_path: Path, run: Run) -> None:
    long = "x" * (1 << 20)
    text = "\n".join(
        [
            f"[    1.000000] {long}",
            "[    2.000000] NVRM: Xid (PCI:0000:3f:00): 46",
            f"[    3.000000] NVRM: Xid (PCI:0000:40:00): 79, {long}",
        ]
    )
    assert set(told(run(write(tmp_path, text)))) == {
        ("GPU 0000:3f:00.0", "XID 46"),
        ("GPU 0000:40:00.0", "XID 79"),
    }


def test_a_pipe_is_waited_for_and_one_into_which_nothing_is_written_is_given_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(NoLog, match="nothing was written"):
        open_log(str(pipe), 0.01, 0.05)
    assert f"{pipe}: nothing comes; still waiting" in capsys.readouterr().err
    writer = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.1; echo it > {pipe}"])
    with open_log(str(pipe), 0.01, 60.0) as file:
        assert file.read() == b"it\n"
    assert writer.wait(180) == 0
    assert "still waiting" in capsys.readouterr().err


def test_a_shells_pipe_of_a_file_that_is_no_log_is_refused_and_not_read_twice(tmp_path: Path) -> None:
    path = write(tmp_path, bytes(range(256)) * 64)
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m sentinel replay --kernel <(cat {path})"],
        capture_output=True,
        timeout=180,
    )
    assert (done.returncode, b"binary, not a log" in done.stderr) == (1, True)


@pytest.mark.parametrize("path", ["/dev/kmsg", "/proc/kmsg", "/dev/zero"])
def test_what_never_ends_is_refused(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--kernel", path]) == 1
    assert "it never ends" in capsys.readouterr().err


def test_a_closed_standard_input_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m sentinel replay --kernel - <&-"],
        capture_output=True,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (1, b"sentinel: -: standard input is closed\n")


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, says in ((tmp_path, "a folder"), (tmp_path / "none", "No such file")):
        assert main(["replay", "--kernel", str(path)]) == 1
        assert says in capsys.readouterr().err


def test_a_jobs_logs_and_a_kernel_log_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write(tmp_path, "x"))
    assert main(["replay", path, "--kernel", path]) == 64
    assert main(["replay", "--kernel", "-", "--kernel", "-"]) == 64
    assert "stands alone" in capsys.readouterr().err
