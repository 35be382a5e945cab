"""A procfs tree for values that cannot be made here; real processes are linked into it."""

from pathlib import Path

from sentinel.checks.base import Kept, Look
from sentinel.core.now import Now
from sentinel.settings import Settings

PF_KTHREAD = 0x00200000


class ProcTree:
    """/proc of a node with few limits reached."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.set("loadavg", "0.50 0.40 0.30 2/800 4242\n")
        self.set("sys/kernel/pid_max", "4194304\n")
        self.set("sys/kernel/threads-max", "1000000\n")
        self.set("sys/fs/file-nr", "5000\t0\t9223372036854775807\n")
        (folder / "self").symlink_to("/proc/self")

    def set(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, pid: int) -> None:
        """A real process as it is."""
        (self.folder / str(pid)).symlink_to(f"/proc/{pid}")

    def process(
        self,
        pid: int,
        name: str,
        state: str = "S",
        *,
        kernel_thread: bool = False,
        switches: int = 7,
        stack: str = "",
        started: int = 100,
        threads: int = 1,
    ) -> None:
        flags = PF_KTHREAD if kernel_thread else 0
        stat = f"{pid} ({name}) {state} 1 1 1 0 -1 {flags} 0 0 0 0 1 2 0 0 20 0 {threads} 0 {started} 0 0 0\n"
        for folder in (f"{pid}", f"{pid}/task/{pid}"):
            self.set(f"{folder}/stat", stat)
            self.set(f"{folder}/status", f"Name:\t{name}\nvoluntary_ctxt_switches:\t{switches}\n")
            self.set(f"{folder}/stack", stack)
        self.set(f"{pid}/comm", name + "\n")

    def look(self, kept: Kept, **settings: object) -> Look:
        return Look(
            Settings(procfs=str(self.folder), **settings),  # type: ignore[arg-type]
            (),
            Now(1000.0, 1_700_000_000.0),
            "boot",
            kept,
        )
