"""The ruler itself: that it measures what it says."""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.bench import harness


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child that sleeps and a grandchild, in a session of its own."""
    process = subprocess.Popen(["sh", "-c", "(sleep 60 & wait) & wait"], start_new_session=True)
    yield process
    os.killpg(process.pid, 9)
    process.wait()


def test_a_process_tree_holds_all_descendants(family: subprocess.Popen[bytes]) -> None:
    harness.wait_until(lambda: len(harness.process_tree(family.pid)) == 3, 20, "sh, sh and sleep")
    assert harness.process_tree(family.pid)[0] == family.pid


def test_pages_shared_by_two_processes_count_once() -> None:
    size = 64 * 2**20
    with mmap.mmap(-1, size) as shared:
        shared.write(b"x" * size)
        alone = harness.pss_bytes([os.getpid()])
        seen, tell = os.pipe()
        child = os.fork()
        if child == 0:
            for page in range(0, size, mmap.PAGESIZE):
                _ = shared[page]  # seen, not copied
            os.write(tell, b"all")
            time.sleep(60)
            os._exit(0)
        try:
            assert os.read(seen, 3) == b"all"
            assert harness.pss_bytes([child]) > size // 3
            assert harness.pss_bytes([os.getpid(), child]) < alone + size // 2
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(seen)
            os.close(tell)


def test_cpu_seconds_count_work_and_not_sleep() -> None:
    before = harness.cpu_seconds([os.getpid()])
    begun = time.process_time()
    while time.process_time() - begun < 0.3:
        pass
    time.sleep(0.05)
    used = harness.cpu_seconds([os.getpid()]) - before
    assert used == pytest.approx(0.3, abs=0.1)


def test_processes_that_have_ended_count_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    assert harness.pss_bytes([process.pid]) == 0
    assert harness.cpu_seconds([process.pid]) == 0


def test_a_difference_is_found_in_noise_and_not_where_there_is_none() -> None:
    noise = [((i * 37) % 11 - 5) / 100 for i in range(30)]
    base = [1.0 + n for n in noise]
    shifted = [1.05 + n for n in noise[::-1]]
    found = harness.paired_difference(base, shifted)
    assert found.low <= found.median <= found.high
    assert found.low <= 0.05 <= found.high
    same = harness.paired_difference(base, base[::-1])
    assert same.low <= 0 <= same.high


def test_a_ratio_above_one_is_a_miss_whichever_way_the_goal_points() -> None:
    assert harness.at_most("a", 2.0, 1.0, "s")["passed"]
    assert harness.at_least("b", 2.0, 3.0, "MB/s")["passed"]
    for missed in (harness.at_most("a", 2.0, 2.1, "s"), harness.at_least("b", 2.0, 1.9, "MB/s")):
        assert not missed["passed"]
        assert missed["ratio"] > 1


def test_order_alternates_between_pairs() -> None:
    seen: list[str] = []

    def note(letter: str) -> float:
        seen.append(letter)
        return float(len(seen))

    a, b = harness.alternate(lambda: note("a"), lambda: note("b"), 3)
    assert "".join(seen) == "abbaab"
    assert (a, b) == ([1.0, 4.0, 5.0], [2.0, 3.0, 6.0])
