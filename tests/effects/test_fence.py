"""Real programs that power machines off, or fail, hang, flood and leave children behind."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from sentinel.controller.effects.fence import AT_ONCE, MAX_LINE, Fencer, unfit
from sentinel.core.fleet.hook import FenceCall
from sentinel.core.fleet.model import Fence, FenceOutcome, Kind, Needs, NodeQuarantine, State
from sentinel.core.fleet.settings import FenceHook
from sentinel.metrics.registry import Metrics
from tests.waits import eventually, runs, turns, until


def a_program(folder: Path, text: str) -> str:
    path = folder / "fence-node"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def a_call(number: int = 1, node: str = "n0", record: str = "n0-0001") -> FenceCall:
    return FenceCall(record, number, node, "uid-n0", "cloud:///i-0")


def a_fencer(*command: str, timeout_s: float = 60.0) -> Fencer:
    return Fencer(FenceHook(command=command, timeout_s=timeout_s), Metrics())


async def outcome(fencer: Fencer) -> FenceOutcome:
    fencer.call(a_call())
    found = await eventually(lambda: fencer.outcomes)
    return found[0]  # type: ignore[no-any-return]


def ended(fencer: Fencer) -> FenceOutcome:
    return asyncio.run(outcome(fencer))


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    async def story() -> None:
        await test()

    asyncio.run(story())


def test_exit_code_0_says_that_the_machine_is_off(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = a_program(
        tmp_path,
        f'echo "$@ $SENTINEL_NODE $SENTINEL_NODE_UID $SENTINEL_PROVIDER_ID $SENTINEL_RECORD" > {told}; cat >> {told}',
    )
    assert ended(a_fencer(program, "--now", "x y")) == FenceOutcome("n0-0001", 1, True, "exit code 0")
    assert told.read_text() == "--now x y n0 n0 uid-n0 cloud:///i-0 n0-0001\n", "and its input was empty"


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ("echo first >&2; printf 'no \\033[31mroute\\n\\n' >&2; exit 3", "exit code 3: no [31mroute"),
        ("exit 1", "exit code 1"),
        ("kill -9 $$", "signal 9"),
        ("echo out; printf '%0.sx' $(seq 1000) >&2; exit 2", f"exit code 2: {'x' * MAX_LINE}"),
    ],
)
def test_any_other_end_is_a_failure_told_with_the_last_line_of_its_errors(
    tmp_path: Path, text: str, how: str
) -> None:
    assert ended(a_fencer(a_program(tmp_path, text))) == FenceOutcome("n0-0001", 1, False, how)


def test_a_program_whose_exit_status_is_lost_has_not_powered_off(tmp_path: Path) -> None:
    """Where SIGCHLD is ignored, as a shell may have left it."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = ended(a_fencer(a_program(tmp_path, "exit 3")))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert found == FenceOutcome("n0-0001", 1, False, "its exit status is not known")


def test_a_program_that_hangs_is_killed_with_its_children_at_its_time_limit(tmp_path: Path) -> None:
    child = tmp_path / "child"
    program = a_program(tmp_path, f"sleep 1000 & echo $! > {child}; echo asked the BMC >&2; wait")
    one = ended(a_fencer(program, timeout_s=3.0))
    assert (one.off, one.how) == (False, "no end within 3 s, killed: asked the BMC")
    until(lambda: not runs(int(child.read_text())))


def test_what_a_child_still_holds_open_is_not_waited_for(tmp_path: Path) -> None:
    child = tmp_path / "child"
    program = a_program(tmp_path, f"sleep 1000 & echo $! > {child}")
    assert ended(a_fencer(program)).off
    until(lambda: not runs(int(child.read_text())))


def test_of_huge_output_its_end_is_kept(tmp_path: Path) -> None:
    program = a_program(
        tmp_path,
        "head -c 30000000 /dev/zero; head -c 30000000 /dev/zero >&2; echo >&2; echo done >&2; exit 4",
    )
    assert ended(a_fencer(program)).how.endswith("done")


def test_a_program_that_cannot_be_started_has_failed_and_is_named(tmp_path: Path) -> None:
    one = ended(a_fencer(str(tmp_path / "none")))
    assert (one.off, one.how) == (False, f"{tmp_path}/none: No such file or directory")


def test_when_the_leader_ends_what_runs_is_killed_and_the_next_one_calls_it_again(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    fencer = a_fencer(a_program(tmp_path, f"echo $$ >> {pids}; exec sleep 1000"))

    async def test() -> None:
        fencer.call(a_call())
        fencer.call(a_call())
        await eventually(pids.exists)
        (pid,) = await eventually(lambda: pids.read_text().split())
        assert runs(int(pid)), "and it was called once"
        fencer.stop()
        await eventually(lambda: not runs(int(pid)))
        await eventually(lambda: fencer.may_call(a_call()))
        assert fencer.outcomes == ()

    in_loop(test)


def test_what_is_stopped_before_it_began_can_be_called_again() -> None:
    fencer = a_fencer("/bin/true")

    async def test() -> None:
        fencer.call(a_call())
        fencer.stop()
        await turns()
        assert (await outcome(fencer)).off

    in_loop(test)


def test_a_few_run_at_once_and_none_waits_for_another(tmp_path: Path) -> None:
    """Each ends when all of them have begun."""
    all_there = f"[ $(ls {tmp_path} | wc -l) -gt {AT_ONCE} ]"  # and the program itself
    program = a_program(tmp_path, f"touch {tmp_path}/$1; until {all_there}; do :; done")
    fencer = a_fencer(program)

    async def test() -> None:
        for number in range(AT_ONCE + 1):
            fencer.call(a_call(node=f"n{number}", record=f"n{number}-0001"))
        await eventually(lambda: len(fencer.outcomes) == AT_ONCE)
        assert not (tmp_path / f"n{AT_ONCE}").exists()

    in_loop(test)


def a_record(tries: int, state: State = State.ACTIVE) -> NodeQuarantine:
    """That waits for this call."""
    return NodeQuarantine(
        id="n0-0001",
        kind=Kind.SILENCE,
        node="n0",
        node_uid="uid-n0",
        state=state,
        needs=Needs(sentence=""),
        fence=Fence(tries=tries, begun_wall_s=1.0),
    )


def test_a_program_whose_node_is_heard_again_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    metrics = Metrics()
    program = a_program(tmp_path, f"sleep 1000 & echo $$ $! > {pids}; wait")
    fencer = Fencer(FenceHook(command=(program,)), metrics)

    async def test() -> None:
        fencer.call(a_call())
        await eventually(pids.exists)
        both = [int(pid) for pid in await eventually(lambda: pids.read_text().split())]
        fencer.settle({"n0-0001": a_record(tries=1)})
        await turns()
        assert all(runs(pid) for pid in both), "it is waited for"
        fencer.settle({"n0-0001": a_record(tries=1, state=State.RELEASED)})
        await eventually(lambda: not any(runs(pid) for pid in both))
        await turns()
        assert fencer.outcomes == ()
        assert fencer.may_call(a_call(record="n0-0002"))

    in_loop(test)
    assert b'sentinel_fence_calls_total{outcome="stopped"} 1' in metrics.render()


def test_calls_are_counted_from_0_where_there_is_a_program() -> None:
    """So that the first failure is an increase, which an alert sees."""
    metrics = Metrics()
    Fencer(None, metrics)
    assert b"sentinel_fence_calls_total{" not in metrics.render()
    Fencer(FenceHook(command=("/bin/true",)), metrics)
    assert b'sentinel_fence_calls_total{outcome="failed"} 0' in metrics.render()


def test_an_outcome_stands_until_its_record_says_it() -> None:
    fencer = a_fencer("/bin/true")

    async def test() -> None:
        fencer.call(a_call(number=2))
        await eventually(lambda: fencer.outcomes)
        record = a_record(tries=2)
        fencer.settle({record.id: record})
        assert len(fencer.outcomes) == 1
        assert not fencer.may_call(a_call(number=2))
        fencer.settle({})
        assert fencer.outcomes == ()

    in_loop(test)


def test_a_program_that_is_no_use_is_named(tmp_path: Path) -> None:
    program = a_program(tmp_path, "")
    assert unfit(program) == ""
    os.chmod(program, 0o757)
    assert unfit(program) == f"{program}: may be written by everybody"
    os.chmod(program, 0o644)
    assert unfit(program) == f"{program}: not an executable file"
    assert unfit(str(tmp_path)) == f"{tmp_path}: not an executable file"
    assert unfit(f"{tmp_path}/none") == f"{tmp_path}/none: No such file or directory"
