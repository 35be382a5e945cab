"""Process ids, descriptors, zombies and D-state: real processes where they can be made, else a procfs tree."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sentinel.checks.base import Kept, Unknown
from sentinel.checks.host import processes
from sentinel.checks.proc_scan import parse_stat, scan
from sentinel.core.health import Finding, Severity
from tests.checks.proc_tree import ProcTree
from tests.waits import until


@pytest.fixture
def proc(tmp_path: Path) -> ProcTree:
    return ProcTree(tmp_path / "proc")


def found(proc: ProcTree, kept: Kept | None = None) -> list[tuple[str, Severity]]:
    return [(item.code, item.severity) for item in processes.check(proc.look(kept or Kept()))]


def after_looks(proc: ProcTree, count: int, kept: Kept) -> list[Finding]:
    for _ in range(count - 1):
        processes.check(proc.look(kept))
    return processes.check(proc.look(kept))


def state_of(pid: int) -> str:
    return parse_stat(Path(f"/proc/{pid}/stat").read_bytes()).state


# ---------------------------------------------------------------- limits of the node


@pytest.mark.parametrize(
    ("used", "severity"),
    [(700, None), (801, Severity.WARNING), (951, Severity.DEGRADED)],
)
def test_process_ids_that_run_out_are_found_and_clear(
    proc: ProcTree, used: int, severity: Severity | None
) -> None:
    proc.set("sys/kernel/pid_max", "1000\n")
    proc.set("loadavg", f"0.5 0.4 0.3 2/{used} 4242\n")
    assert found(proc) == ([("pids", severity)] if severity else [])
    proc.set("loadavg", "0.5 0.4 0.3 2/100 4242\n")
    assert found(proc) == []


@pytest.mark.parametrize(
    ("used", "severity"),
    [(700, None), (801, Severity.WARNING), (951, Severity.DEGRADED)],
)
def test_descriptors_of_the_node_that_run_out_are_found_and_clear(
    proc: ProcTree, used: int, severity: Severity | None
) -> None:
    proc.set("sys/fs/file-nr", f"{used}\t0\t1000\n")
    assert found(proc) == ([("fds", severity)] if severity else [])
    proc.set("sys/fs/file-nr", "100\t0\t1000\n")
    assert found(proc) == []


def test_a_process_near_its_own_limit_of_open_files_is_named_until_it_closes_them(proc: ProcTree) -> None:
    code = (
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))\n"
        "files = [os.open('/dev/null', os.O_RDONLY) for _ in range(900)]\n"
        "print('open', flush=True); sys.stdin.readline()\n"
        "for file in files: os.close(file)\n"
        "print('closed', flush=True); sys.stdin.readline()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin
    assert child.stdout
    proc.link(child.pid)
    assert child.stdout.readline() == "open\n"
    (finding,) = processes.check(proc.look(Kept()))
    assert finding.code == "process-fds"
    assert f"pid {child.pid}: 90" in finding.evidence[0]
    print(file=child.stdin, flush=True)
    assert child.stdout.readline() == "closed\n"
    assert processes.check(proc.look(Kept())) == []
    child.communicate("\n")


def test_descriptors_are_counted_on_kernels_that_do_not_tell_their_number(proc: ProcTree) -> None:
    proc.process(77, "leaky")
    (proc.folder / "self").unlink()  # as before Linux 6.2: the folder has no size
    fds = proc.folder / "77/fd"
    fds.mkdir()
    for number in range(850):
        (fds / str(number)).touch()
    proc.set("77/limits", "Max open files            1024                 524288               files     \n")
    assert found(proc) == [("process-fds", Severity.WARNING)]
    proc.set("77/limits", "Max open files            1048576              1048576              files     \n")
    assert found(proc) == []  # many, and far from its limit


# ---------------------------------------------------------------- zombies


def test_zombies_are_counted_with_their_parent_until_it_collects_them(proc: ProcTree) -> None:
    code = (
        "import os, sys\n"
        "pids = []\n"
        "for _ in range(30):\n"
        "    pid = os.fork()\n"
        "    if pid == 0: os._exit(0)\n"
        "    pids.append(pid)\n"
        "print(*pids, flush=True); sys.stdin.readline()\n"
        "for pid in pids: os.waitpid(pid, 0)\n"
        "print('collected', flush=True); sys.stdin.readline()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin
    assert parent.stdout
    pids = [int(word) for word in parent.stdout.readline().split()]
    for pid in (parent.pid, *pids):
        proc.link(pid)
    until(lambda: all(state_of(pid) == "Z" for pid in pids), "no zombies")
    assert found(proc) == []  # 30 of a million
    proc.set("sys/kernel/pid_max", "100\n")
    proc.set("loadavg", "0.5 0.4 0.3 2/31 4242\n")
    (finding,) = processes.check(proc.look(Kept()))
    assert (finding.code, finding.severity) == ("zombies", Severity.WARNING)
    assert "30 zombies, 30% of 100; 30 of python" in finding.evidence[0]
    assert f"(pid {parent.pid})" in finding.evidence[0]
    proc.set("sys/fs/file-nr", "10\t0\t35\n")  # the descriptor limit, where it is the lower one
    assert found(proc) == [("zombies", Severity.DEGRADED)]
    print(file=parent.stdin, flush=True)
    assert parent.stdout.readline() == "collected\n"
    assert found(proc) == []
    parent.communicate("\n")


# ---------------------------------------------------------------- stuck in the kernel


def waits_for_thaw(task: int) -> bool:
    """Not only in D, as it is also while its program is read from a slow disk."""
    wchan = Path(f"/proc/{task}/wchan").read_text()
    return state_of(task) == "D" and ("percpu_rwsem" in wchan or "freeze" in wchan)


def test_a_process_stuck_in_the_kernel_is_told_after_five_looks_until_it_goes_on(
    proc: ProcTree, frozen: Path
) -> None:
    child = subprocess.Popen(["sh", "-c", f"echo x > {frozen}/file"])
    proc.link(child.pid)
    until(lambda: waits_for_thaw(child.pid), "does not block")
    kept = Kept()
    assert after_looks(proc, 4, kept) == []
    assert "1 in D" in str(kept.detail)
    (finding,) = after_looks(proc, 1, kept)
    assert (finding.code, finding.severity, finding.entity) == ("d-state", Severity.WARNING, "processes")
    assert f"pid {child.pid} sh" in finding.evidence[0]
    if os.geteuid() == 0:  # the kernel's stack is root's to see
        assert "percpu_rwsem" in finding.evidence[0] or "freeze" in finding.evidence[0], finding.evidence
    subprocess.run(["fsfreeze", "-u", str(frozen)], check=True)
    assert child.wait(180) == 0
    assert after_looks(proc, 1, kept) == []


def test_a_dead_process_with_a_thread_that_does_not_end_is_stuck(proc: ProcTree, frozen: Path) -> None:
    """A killed rank whose thread waits in the kernel shows as a zombie."""
    code = (
        "import sys, threading\n"
        f"threading.Thread(target=lambda: open('{frozen}/file', 'w')).start()\n"
        "print('ready', flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stdout.readline() == "ready\n"
    threads = Path(f"/proc/{child.pid}/task")
    until(
        lambda: any(waits_for_thaw(int(task.name)) for task in threads.iterdir()),
        "no thread blocks",
    )
    child.send_signal(signal.SIGKILL)
    until(lambda: state_of(child.pid) == "Z", "the leader does not die")
    proc.link(child.pid)
    kept = Kept()
    (finding,) = after_looks(proc, 5, kept)
    assert f"pid {child.pid} python" in finding.evidence[0]
    subprocess.run(["fsfreeze", "-u", str(frozen)], check=True)
    child.wait(180)
    assert after_looks(proc, 1, kept) == []


def test_a_program_whose_first_thread_has_ended_is_not_stuck(proc: ProcTree) -> None:
    """It shows as a zombie too, while its other threads work."""
    proc.process(50, "server", "Z", threads=2)
    assert after_looks(proc, 6, Kept()) == []


def test_a_process_that_works_with_a_disk_is_not_stuck(proc: ProcTree) -> None:
    kept = Kept()
    for look in range(8):
        proc.process(50, "tar", "D", switches=look)
        assert processes.check(proc.look(kept)) == []


def test_a_storage_stall_moves_nothing_before_it_has_lasted(proc: ProcTree) -> None:
    """It meets all nodes at once: jobs that step would be moved from one to the other."""
    kept = Kept()
    proc.process(50, "cp", "D")
    (finding,) = after_looks(proc, processes.LASTS_SAMPLES - 1, kept)
    assert finding.severity is Severity.WARNING
    (finding,) = after_looks(proc, 1, kept)
    assert (finding.code, finding.severity) == ("d-state", Severity.DEGRADED)


def test_another_process_under_the_same_pid_starts_anew(proc: ProcTree) -> None:
    kept = Kept()
    proc.process(50, "cp", "D", started=100)
    assert after_looks(proc, 4, kept) == []
    proc.process(50, "cp", "D", started=200)
    assert after_looks(proc, 4, kept) == []


@pytest.mark.parametrize(
    ("name", "kernel_thread", "stack"),
    [
        ("nvidia-smi", False, ""),
        ("nvidia-modeset/", True, ""),
        (
            "python3",
            False,
            "[<0>] os_acquire_rwlock_write+0x35/0x40 [nvidia]\n[<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n",
        ),
        ("python3", False, "[<0>] uvm_va_space_destroy+0x99/0x300 [nvidia_uvm]\n"),
    ],
)
def test_what_is_stuck_in_the_nvidia_driver_asks_for_a_reboot(
    proc: ProcTree, name: str, kernel_thread: bool, stack: str
) -> None:
    proc.process(50, name, "D", kernel_thread=kernel_thread, stack=stack)
    kept = Kept()
    assert after_looks(proc, 4, kept) == []
    (finding,) = after_looks(proc, 1, kept)
    assert (finding.code, finding.severity, finding.action) == (
        "d-state-nvidia",
        Severity.DEGRADED,
        "RESTART_BM",
    )
    proc.process(50, name, "S", kernel_thread=kernel_thread)
    assert after_looks(proc, 1, kept) == []


def test_a_kernel_thread_that_waits_by_design_is_only_told(proc: ProcTree) -> None:
    proc.process(50, "vendor_poll", "D", kernel_thread=True)
    (finding,) = after_looks(proc, 5, Kept())
    assert (finding.entity, finding.severity) == ("kernel threads", Severity.WARNING)


@pytest.mark.parametrize(
    ("stack", "wchan", "told"),
    [
        ("", "0", "D in 5 looks in a row"),  # not root: the kernel hides it
        ("", "rpc_wait_bit_killable", "D in 5 looks in a row in rpc_wait_bit_killable"),
        ("[<0>] a+0x1/0x2\n[<0>] b+0x1/0x2 [nfs]\n", "a", "D in 5 looks in a row in a < b"),
    ],
)
def test_where_it_is_stuck_is_told_as_far_as_it_can_be_seen(
    proc: ProcTree, stack: str, wchan: str, told: str
) -> None:
    proc.process(50, "ls", "D", stack=stack)
    proc.set("50/task/50/wchan", wchan)
    (finding,) = after_looks(proc, 5, Kept())
    assert finding.evidence == (f"pid 50 ls: {told}",)


def test_the_parent_of_a_vfork_is_not_stuck(proc: ProcTree) -> None:
    proc.process(50, "make", "D", stack="[<0>] __do_sys_vfork+0x50/0x60\n")
    assert after_looks(proc, 6, Kept()) == []


def test_hundreds_of_stuck_processes_are_one_finding(proc: ProcTree) -> None:
    for pid in range(100, 400):
        proc.process(pid, "cat", "D")
    (finding,) = after_looks(proc, 5, Kept())
    assert "300 cannot run" in finding.summary
    assert len(finding.evidence) == processes.MAX_NAMED


# ---------------------------------------------------------------- bad input


def test_odd_names_and_half_gone_processes_do_not_break_the_pass(proc: ProcTree) -> None:
    proc.process(50, "a) D (b", "S")
    proc.set("51/stat", "")
    proc.set("52/stat", "52 (x")
    proc.set("53/stat", "53 (x) D 1\n")
    (proc.folder / "54").mkdir()
    seen = scan(str(proc.folder))
    assert (seen.blocked, seen.zombies) == ([], [])
    assert found(proc) == []


def test_an_unreadable_proc_is_unknown(proc: ProcTree) -> None:
    proc.set("sys/fs/file-nr", "many\n")
    with pytest.raises(Unknown):
        found(proc)


def test_this_machine_is_read() -> None:
    assert scan("/proc").count > 1
    limits = processes.read_limits(Path("/proc"))
    assert 0 < limits.threads < limits.max_threads
    assert 0 < limits.fds < limits.max_fds
