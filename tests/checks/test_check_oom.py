"""Kills for memory: the kernel really kills in a small cgroup v1; cgroup v2 by a tree."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from sentinel.checks.base import Kept, Look, Unknown
from sentinel.checks.findings import KEPT_S, FindingBook
from sentinel.checks.host import oom
from sentinel.core.health import Finding, Severity
from sentinel.core.now import Now
from sentinel.settings import Settings
from tests.gate.rights import needs_root

HIERARCHY = Path("/sys/fs/cgroup/memory")
EAT = "data = []\nwhile True: data.append(bytearray(1 << 20))"


@pytest.fixture
@needs_root
def small_group() -> Iterator[Path]:
    """A cgroup with 24 MB."""
    group = HIERARCHY / f"sentinel-test-{os.getpid()}/pod"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(str(24 << 20))
    yield group
    group.rmdir()
    group.parent.rmdir()


def eat_memory_in(group: Path) -> int:
    command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", sys.executable, "-c", EAT]
    return subprocess.run(command, check=False, timeout=180).returncode


def killed_in(found: list[Finding], group: Path) -> list[Finding]:
    """Others may be killed on this machine at the same time."""
    return [finding for finding in found if finding.entity == f"cgroup /{group.relative_to(HIERARCHY)}"]


def test_a_process_that_the_kernel_kills_for_memory_is_told_with_its_control_group(small_group: Path) -> None:
    look = Look(Settings(), (), Now(1000.0, 1.7e9), "boot", Kept())
    assert oom.check(look) == []
    assert killed_in(oom.check(look), small_group) == []
    assert eat_memory_in(small_group) == -9
    (finding,) = killed_in(oom.check(look), small_group)
    assert (finding.code, finding.severity, finding.event) == ("oom-kill", Severity.WARNING, True)
    assert killed_in(oom.check(look), small_group) == []  # told once
    assert eat_memory_in(small_group) == -9
    assert len(killed_in(oom.check(look), small_group)) == 1


# ---------------------------------------------------------------- cgroup v2


class Groups:
    """A cgroup v2 tree, whose counts rise in all parents as the kernel's do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept = Kept()
        self.total = 3
        (folder / "proc").mkdir()
        for group in ("kubepods.slice/pod1", "kubepods.slice/pod2/main", "system.slice/sshd.service"):
            self.make(group)
        self.kill("system.slice/sshd.service", 3 - self.total)

    def file(self, group: str) -> Path:
        return self.folder / "sys/fs/cgroup" / group / "memory.events"

    def make(self, group: str) -> None:
        for folder in (group, *(str(parent) for parent in Path(group).parents if str(parent) != ".")):
            if not self.file(folder).exists():
                self.file(folder).parent.mkdir(parents=True, exist_ok=True)
                self.write(folder, 0)

    def write(self, group: str, count: int) -> None:
        self.file(group).write_text(
            f"low 0\nhigh 0\nmax 12\noom {count}\noom_kill {count}\noom_group_kill 0\n"
        )

    def kill(self, group: str, count: int = 1) -> None:
        for folder in (group, *(str(parent) for parent in Path(group).parents if str(parent) != ".")):
            self.write(folder, oom.count_of(self.file(folder).read_text()) + count)
        self.total += count
        (self.folder / "proc/vmstat").write_text(f"nr_free_pages 100\noom_kill {self.total}\n")

    def findings(self) -> list[Finding]:
        settings = Settings(
            procfs=str(self.folder / "proc"),
            sysfs=str(self.folder / "sys"),
            pod_logs=str(self.folder / "pods"),
        )
        return oom.check(Look(settings, (), Now(1000.0, 1.7e9), "boot", self.kept))

    def check(self) -> list[tuple[str, int]]:
        return [(finding.entity, finding.count) for finding in self.findings()]


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


def test_the_deepest_group_is_named_and_not_those_above_it(groups: Groups) -> None:
    assert groups.check() == []
    groups.kill("kubepods.slice/pod2/main", 2)
    groups.kill("kubepods.slice/pod1")
    groups.kill("kubepods.slice/pod2")
    assert groups.check() == [
        ("cgroup /kubepods.slice/pod1", 1),
        ("cgroup /kubepods.slice/pod2", 1),
        ("cgroup /kubepods.slice/pod2/main", 2),
    ]
    assert groups.check() == []


def test_a_kill_names_its_job(groups: Groups) -> None:
    uid = "95387fa4-da9c-11e7-9d36-5254b24cbf5e"
    (groups.folder / f"pods/ml_llama-x7z9k_{uid}").mkdir(parents=True)
    own = (f"kubepods/pod{uid}/6895a3", "slurm/job_4711/step_0")
    for group in own:
        groups.make(group)
    groups.check()
    for group in own:
        groups.kill(group)
    found = groups.findings()
    assert {item.job for item in found} == {"pod ml/llama", "slurm 4711"}
    assert {item.action for item in found} == {"ADD_MEMORY"}


def test_a_group_may_be_named_in_any_bytes(groups: Groups) -> None:
    """As one that was delegated to a user: what is kept must still be saved."""
    name = os.fsdecode(b"user.slice/\xff")
    groups.make(name)
    groups.check()
    groups.kill(name)
    assert groups.check() == [("cgroup /user.slice/\\udcff", 1)]
    assert msgspec.json.encode(groups.kept.saved)
    groups.kill(name)
    assert groups.check() == [("cgroup /user.slice/\\udcff", 1)]


def test_a_kill_in_a_group_that_is_gone_already_is_still_told(groups: Groups) -> None:
    assert groups.check() == []
    groups.total += 1
    groups.kill("kubepods.slice/pod1", 0)
    assert groups.check() == [("node", 1)]


def test_a_flood_of_groups_is_not_walked_to_its_end(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "MAX_GROUPS", 1)
    assert groups.check() == []
    groups.kill("kubepods.slice/pod2/main")
    groups.kill("system.slice/sshd.service")
    assert sum(count for _, count in groups.check()) == 2  # none is lost, whoever it was
    assert len(groups.kept.saved["groups"]) < 4


def test_a_kill_in_a_new_group_is_told_and_one_made_anew_counts_from_zero(groups: Groups) -> None:
    groups.kill("kubepods.slice/pod1", 5)
    assert groups.check() == []
    groups.make("kubepods.slice/pod3")
    groups.kill("kubepods.slice/pod3")
    groups.write("kubepods.slice/pod1", 0)
    assert groups.check() == [("cgroup /kubepods.slice/pod3", 1)]


def test_kills_while_the_agent_was_down_are_told_at_its_start(groups: Groups) -> None:
    groups.check()
    groups.kept = Kept(saved=msgspec.json.decode(msgspec.json.encode(groups.kept.saved)))
    groups.kill("kubepods.slice/pod1")
    assert groups.check() == [("cgroup /kubepods.slice/pod1", 1)]


def test_it_ends_by_time(groups: Groups) -> None:
    groups.check()
    groups.kill("kubepods.slice/pod1")
    settings = Settings(procfs=str(groups.folder / "proc"), sysfs=str(groups.folder / "sys"))
    (finding,) = oom.check(Look(settings, (), Now(1000.0, 1.7e9), "boot", groups.kept))
    book = FindingBook("boot")
    book.fold("oom", [msgspec.structs.replace(finding, seen_mono_s=1000.0)], Now(1000.0, 1.7e9))
    assert len(book.active()) == 1
    book.fold("oom", [], Now(1001.0 + KEPT_S[Severity.WARNING], 1.7e9))
    assert book.active() == ()


def test_a_kernel_that_does_not_count_kills_is_unknown(groups: Groups) -> None:
    (groups.folder / "proc/vmstat").write_text("nr_free_pages 100\n")
    with pytest.raises(Unknown, match="oom_kill"):
        groups.check()
