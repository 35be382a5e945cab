"""Real children that answer, refuse to listen, flood, hang and leave others behind."""

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sentinel.util import children
from sentinel.util.children import (
    COMPLAINT_BYTES,
    ChildError,
    Ended,
    NotStarted,
    OutOfTime,
    SaidTooMuch,
    ask,
    our_python,
)
from tests.waits import eventually, runs, until

LONG_S = 120.0


def shell(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def asked(command: list[str], question: bytes = b"", limit_s: float = LONG_S, most: int = 1 << 20) -> Ended:
    return asyncio.run(ask(command, question, limit_s=limit_s, most_bytes=most))


def gone(pid: int) -> bool:
    """Not even a zombie."""
    return not Path(f"/proc/{pid}").exists()


def descriptors() -> list[str]:
    """Of children: pipes and pidfds. Others may be opened once for all."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return sorted(one for one in found if one.startswith(("pipe:", "anon_inode:[pidfd]")))


# ---------------------------------------------------------------- a question and its answer


def test_a_question_larger_than_any_pipe_is_answered_while_it_is_asked() -> None:
    question = os.urandom(1 << 16) * 50
    assert asked(["cat"], question, most=len(question)) == Ended(0, question, "")


def test_without_a_question_its_input_is_empty() -> None:
    assert asked(shell("cat; echo done")).answer == b"done\n"


def test_its_exit_status_and_the_last_line_of_its_errors_are_told() -> None:
    ended = asked(shell("echo begun; echo first >&2; echo 'no route' >&2; exit 3"))
    assert ended == Ended(3, b"begun\n", "first\nno route")
    assert ended.last_line == "no route"
    assert asked(shell("kill -9 $$")) == Ended(-9, b"", "")
    assert asked(shell("exit 1")).last_line == "it said nothing"


def test_lines_are_taken_as_they_come_and_each_is_bounded_alone() -> None:
    """The child says the next line when the one before has been taken."""
    loops, taken = 50, list[bytes]()

    async def test() -> Ended:
        answered, answers = os.pipe()

        def take(line: bytes) -> None:
            taken.append(line)
            os.write(answers, b"\n")

        told = (
            f"for k in $(seq {loops}); do echo line $k; read -r _ < /proc/{os.getpid()}/fd/{answered}; done"
        )
        try:
            return await ask(shell(f"{told}; printf rest"), limit_s=LONG_S, most_bytes=10, take=take)
        finally:
            os.close(answered)
            os.close(answers)

    assert asyncio.run(test()) == Ended(0, b"rest", "")
    assert taken == [b"line %d" % (k + 1) for k in range(loops)]
    with pytest.raises(SaidTooMuch):
        asyncio.run(ask(shell("echo 12345678901"), limit_s=LONG_S, most_bytes=10, take=taken.append))


def test_what_it_said_just_before_its_end_is_read_to_the_last_byte() -> None:
    """All of it lies in a large pipe when the child is seen to have ended."""
    text = f"import fcntl, os; fcntl.fcntl(1, {fcntl.F_SETPIPE_SZ}, {1 << 20}); "
    text += "os.write(1, b'%d\\n' % os.getpid() + b'x' * 700_000)"

    def take(line: bytes) -> None:
        until(lambda: not runs(int(line)))

    ended = asyncio.run(ask(python(text), limit_s=LONG_S, most_bytes=1 << 20, take=take))
    assert ended == Ended(0, b"x" * 700_000, "")


def test_a_stream_that_it_has_closed_is_looked_at_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [0]
    listen = children._Child._listen

    def counted(child: children._Child) -> int:
        turns[0] += 1
        return listen(child)

    monkeypatch.setattr(children._Child, "_listen", counted)
    assert asked(shell("exec >&-; exec 2>&-; sleep 0.5")) == Ended(0, b"", "")
    assert turns[0] < 20


def test_what_takes_a_line_may_refuse_it() -> None:
    pids = list[int]()

    def refuse(line: bytes) -> None:
        pids.append(int(line))
        raise ValueError("no answer")

    with pytest.raises(ValueError, match="no answer"):
        asyncio.run(ask(shell("echo $$; sleep 1000"), limit_s=LONG_S, most_bytes=100, take=refuse))
    assert gone(pids[0])


def test_our_own_python_takes_no_module_from_the_folder_it_is_called_in(tmp_path: Path) -> None:
    for name in ("sentinel", "msgspec", "json"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('of the job')\n")
    command = our_python("sentinel.cluster.local.flight_dumps")
    ended = asyncio.run(ask(command, b"[]", limit_s=LONG_S, most_bytes=1 << 20, cwd=str(tmp_path)))
    assert (ended.code, ended.complaint) == (0, "")


def test_our_own_python_takes_this_sentinel_where_another_one_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sentinel").mkdir()
    (tmp_path / "sentinel" / "__init__.py").write_text("raise SystemExit('another one')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    command = our_python("sentinel.cluster.local.flight_dumps")
    assert asked(command, b"[]").complaint == ""


def test_what_lies_beside_sentinel_hides_no_other_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beside one that runs from a source tree."""
    (tmp_path / "sentinel").mkdir()
    (tmp_path / "sentinel" / "__init__.py").touch()
    (tmp_path / "sentinel" / "it.py").write_text("import decimal\nmain = lambda: print(decimal.Decimal(1))\n")
    (tmp_path / "decimal.py").write_text("raise SystemExit('not of Python')\n")
    monkeypatch.setattr(children, "__file__", str(tmp_path / "sentinel" / "util" / "children.py"))
    assert asked(our_python("sentinel.it")) == Ended(0, b"1\n", "")


# ---------------------------------------------------------------- children that do not answer


def test_what_cannot_be_started_is_named(tmp_path: Path) -> None:
    before = descriptors()
    with pytest.raises(NotStarted, match=f"{tmp_path}/none: No such file or directory"):
        asked([f"{tmp_path}/none"])
    assert descriptors() == before


def test_a_command_that_no_program_can_get_is_not_started() -> None:
    with pytest.raises(NotStarted, match="echo: embedded null byte"):
        asked(["echo", "a\0b"])


@pytest.mark.parametrize("watched", range(4))
def test_one_that_cannot_be_watched_is_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watched: int
) -> None:
    """As where the kernel watches no more descriptors for this user: here the loop says so."""
    told = tmp_path / "pid"

    async def test() -> None:
        loop = asyncio.get_running_loop()
        count = 0

        def unless_full(watch: Callable[..., None]) -> Callable[..., None]:
            def listen(*given: object) -> None:
                nonlocal count
                count += 1
                if count > watched:
                    until(told.exists)
                    raise OSError(errno.ENOSPC, "No space left on device")
                watch(*given)

            return listen

        before = descriptors()
        with monkeypatch.context() as full:
            for name in ("add_reader", "add_writer"):
                full.setattr(loop, name, unless_full(getattr(loop, name)))
            command = shell(f"echo $$ > {told}.new; mv {told}.new {told}; sleep 1000")
            with pytest.raises(NotStarted, match="/bin/sh: No space left on device"):
                await ask(command, b"?", limit_s=LONG_S, most_bytes=10)
        assert descriptors() == before
        pid = int(told.read_text())
        until(lambda: not runs(pid))
        await ask(["true"], limit_s=LONG_S)
        assert gone(pid), "the next one that is started has it reaped"

    asyncio.run(test())


def test_one_that_ended_in_time_has_answered_however_late_it_is_heard(tmp_path: Path) -> None:
    taken = list[bytes]()

    async def test() -> Ended:
        command = shell(f"echo line; printf rest; echo $$ > {tmp_path}/pid; exit 3")
        asking = asyncio.create_task(ask(command, limit_s=0.2, most_bytes=10, take=taken.append))
        await asyncio.sleep(0)  # it is started
        begun_s = time.monotonic()
        until(lambda: time.monotonic() - begun_s > 0.3 and (tmp_path / "pid").exists())
        until(lambda: not runs(int((tmp_path / "pid").read_text())))
        return await asking

    assert asyncio.run(test()) == Ended(3, b"rest", "")
    assert taken == [b"line"]


def test_one_whose_end_is_cancelled_too_leaves_no_zombie(tmp_path: Path) -> None:
    async def test() -> None:
        asking = asyncio.create_task(ask(shell(f"echo $$ > {tmp_path}/pid; exec sleep 1000"), limit_s=100))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.wait([asking], timeout=0.01)
        asking.cancel()
        await asyncio.wait([asking], timeout=0)  # it begins to end
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert gone(int((tmp_path / "pid").read_text()))

    for _ in range(20):
        asyncio.run(test())
        (tmp_path / "pid").unlink()


@pytest.fixture
def _reaped_by_the_kernel() -> Iterator[None]:
    """SIGCHLD is ignored, as a shell may have left it."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("_reaped_by_the_kernel")
def test_an_exit_status_that_is_lost_is_not_taken_for_0() -> None:
    with pytest.raises(ChildError, match="its exit status is not known") as caught:
        asked(shell("read -r _; echo no route >&2; exit 3"), b"go\n")
    assert caught.value.complaint == "no route"


@pytest.mark.usefixtures("_reaped_by_the_kernel")
def test_one_that_is_gone_before_it_is_watched_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    pidfd_open = os.pidfd_open

    def late(pid: int) -> int:
        until(lambda: gone(pid))
        return pidfd_open(pid)

    monkeypatch.setattr(os, "pidfd_open", late)
    before = descriptors()
    with pytest.raises(ChildError, match="its exit status is not known") as caught:
        asked(["true"])
    assert not isinstance(caught.value, NotStarted)
    assert descriptors() == before


def test_an_answer_that_is_too_long_ends_its_child_and_fills_no_memory(tmp_path: Path) -> None:
    most = 100_000
    tracemalloc.start()
    try:
        with pytest.raises(SaidTooMuch, match="longer than 100000 bytes") as caught:
            asked(shell(f"echo $$ > {tmp_path}/pid; echo much >&2; exec yes"), most=most)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.begun == b"y\n" * (most // 2)
    assert caught.value.complaint == "much"
    assert peak < 2_000_000
    assert gone(int((tmp_path / "pid").read_text()))


def test_of_endless_errors_the_end_is_kept_and_they_fill_no_memory() -> None:
    tracemalloc.start()
    try:
        ended = asked(shell("head -c 30000000 /dev/zero >&2; echo >&2; echo the end >&2; exit 4"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (ended.code, ended.last_line) == (4, "the end")
    assert len(ended.complaint) <= COMPLAINT_BYTES
    assert peak < 2_000_000


def test_a_child_that_does_not_listen_may_answer_all_the_same() -> None:
    assert asked(shell("exec <&-; echo known; exit 5"), b"x" * 10_000_000) == Ended(5, b"known\n", "")
    assert asked(shell("head -c 3"), b"y" * 10_000_000) == Ended(0, b"yyy", "")


def test_a_child_that_never_answers_is_killed_with_its_children_at_its_time_limit(tmp_path: Path) -> None:
    before = descriptors()
    text = f"sleep 1000 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/pid; echo asked it >&2; wait"
    with pytest.raises(OutOfTime, match="no answer within 3 s") as caught:
        asked(shell(text), b"x" * 10_000_000, limit_s=3.0)
    assert caught.value.complaint == "asked it"
    assert gone(int((tmp_path / "pid").read_text()))
    until(lambda: not runs(int((tmp_path / "child").read_text())))
    assert descriptors() == before


def test_what_its_children_hold_open_is_not_waited_for_nor_left_in_its_group(tmp_path: Path) -> None:
    ended = asked(shell(f"sleep 1000 & echo $! > {tmp_path}/child; echo done"))
    assert ended == Ended(0, b"done\n", "")
    until(lambda: not runs(int((tmp_path / "child").read_text())))


def test_one_that_left_its_group_and_goes_on_talking_is_not_waited_for(tmp_path: Path) -> None:
    speaker = "import os,sys; os.setsid(); print(os.getpid(), file=open(sys.argv[1],'w'), flush=True)\n"
    speaker += "while True: os.write(2, b'again\\n'); os.write(1, b'again\\n')"
    told = tmp_path / "pid"
    text = f"'{sys.executable}' -c \"$0\" {told} & until [ -s {told} ]; do :; done; echo done"
    command = [*shell(text), speaker]
    try:
        ended = asyncio.run(ask(command, limit_s=LONG_S, most_bytes=1 << 20, take=lambda _: None))
        assert ended.code == 0
    finally:
        with contextlib.suppress(ProcessLookupError):  # its pipes are gone, and it with them
            os.kill(int(told.read_text()), signal.SIGKILL)


# ---------------------------------------------------------------- who asks goes


def test_cancelling_kills_the_child_and_reaps_it(tmp_path: Path) -> None:
    async def test() -> None:
        told = tmp_path / "pid"
        task = asyncio.create_task(
            ask(shell(f"echo $$ > {told}; exec sleep 1000"), b"?", limit_s=LONG_S, most_bytes=10)
        )
        pid = int(await eventually(lambda: told.exists() and told.read_text()))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gone(pid)

    asyncio.run(test())


def test_a_child_that_outlives_its_kill_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that hangs in the kernel: here the signal is not sent."""
    monkeypatch.setattr(children._Child, "_kill", lambda self: None)
    monkeypatch.setattr(children, "KILLED_S", 0.1)
    told = tmp_path / "pid"
    before = descriptors()
    command = shell(f"echo $$ > {told}; exec sleep 1000")
    with pytest.raises(OutOfTime):
        asked(command, limit_s=3.0)
    pid = int(told.read_text())
    assert runs(pid)
    assert descriptors() == before
    os.kill(pid, signal.SIGKILL)
    until(lambda: not runs(pid))
    asked(["true"])
    assert gone(pid), "the next one that is started has it reaped"


def test_children_cost_no_threads(tmp_path: Path) -> None:
    def names() -> set[str]:
        return {one.name for one in threading.enumerate()}

    before = names()

    async def test() -> None:
        told = tmp_path / "pid"
        task = asyncio.create_task(
            ask(shell(f"echo $$ > {told}; exec sleep 1000"), limit_s=LONG_S, most_bytes=10)
        )
        await eventually(told.exists)
        assert names() == before
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(test())
