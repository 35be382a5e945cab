"""The runner: bounded, isolated, counted; results that are fresh are used again; what is known survives a restart."""

import asyncio
import os
import sys
import threading
import time
import types
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from sentinel.checks.base import Absent, Check, CheckFunction, Look, Unknown
from sentinel.checks.child import ChildBroke, ChildMemory, LineChild
from sentinel.checks.nvidia import nvml as nvml_check
from sentinel.checks.runner import CheckRunner
from sentinel.checks.table import CHECKS
from sentinel.config import kinds
from sentinel.core.health import CheckResult, CheckState, Component, Finding, Severity
from sentinel.logs.kmsg import encode_record
from sentinel.settings import Settings
from tests.waits import eventually


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Check]:
    """A row whose module has the given function as its check."""

    def make(name: str, function: CheckFunction, interval_s: float = 0.02, deadline_s: float = 5.0) -> Check:
        module = types.ModuleType(f"probe_{name}")
        module.check = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return Check(
            name=name,
            component=Component.SYSTEM,
            module=module.__name__,
            interval_s=interval_s,
            deadline_s=deadline_s,
            needs="nothing",
        )

    return make


def broken(name: str = "thing") -> Finding:
    return Finding(
        check="probe",
        component=Component.SYSTEM,
        entity=name,
        code="broken",
        severity=Severity.WARNING,
        action="FIX",
        summary="broken",
    )


async def while_running(runner: CheckRunner, story: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.create_task(runner.run())
    try:
        await story()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_check_that_the_settings_skip_does_not_look_and_what_it_had_found_is_over(
    row: Callable[..., Check],
) -> None:
    looked: list[str] = []

    def look(at: Look) -> list[Finding]:
        looked.append(at.check)
        return [msgspec.structs.replace(broken(at.check), check=at.check)]

    before = CheckRunner(Settings(), checks=[row("a", look), row("b", look)])
    asyncio.run(before.check_now(max_age_s=0.0))
    assert sorted(looked) == ["a", "b"]
    runner = CheckRunner(Settings(skip_checks=("a",)), checks=[row("a", look), row("b", look)])
    assert runner.restore(before.snapshot())

    async def twice() -> list[CheckResult]:
        await runner.check_now(max_age_s=0.0)
        anew = await runner.check_anew("a")
        return [anew, *await runner.check_now(max_age_s=0.0)]

    anew, skipped, other = asyncio.run(twice())
    assert (anew.state, skipped.state, other.state) == (
        CheckState.ABSENT,
        CheckState.ABSENT,
        CheckState.FOUND,
    )
    assert "skipChecks" in skipped.detail
    assert [finding.entity for finding in runner.book.active()] == ["b"]
    assert looked.count("a") == 1


def test_the_settings_know_the_names_of_all_checks() -> None:
    assert kinds.CHECKS == tuple(one.name for one in CHECKS)


def test_absent_unknown_ok_and_found_are_four_things(machine: Any, row: Any) -> None:
    def absent(look: Look) -> list[Finding]:
        raise Absent("no such card")

    def unknown(look: Look) -> list[Finding]:
        raise Unknown("not permitted")

    rows = [
        row("a", absent),
        row("u", unknown),
        row("o", lambda look: []),
        row("probe", lambda look: [broken()]),
    ]
    results = {
        result.check: result for result in asyncio.run(CheckRunner(machine.settings, checks=rows).check_now())
    }
    assert {name: result.state for name, result in results.items()} == {
        "a": CheckState.ABSENT,
        "u": CheckState.UNKNOWN,
        "o": CheckState.OK,
        "probe": CheckState.FOUND,
    }
    assert results["u"].detail == "not permitted"
    (finding,) = results["probe"].findings
    assert finding.seen_mono_s > 0
    assert finding.boot_id


def test_a_check_that_raises_is_unknown_counted_and_hurts_no_other(machine: Any, row: Any) -> None:
    def bug(look: Look) -> list[Finding]:
        raise ZeroDivisionError("a bug")

    runner = CheckRunner(machine.settings, checks=[row("bug", bug), row("good", lambda look: [])])
    bad, good = asyncio.run(runner.check_now())
    assert (bad.state, bad.detail) == (CheckState.UNKNOWN, "ZeroDivisionError: a bug")
    assert good.state is CheckState.OK
    assert runner.stats["bug"].exceptions == 1


def test_a_check_whose_thread_cannot_be_started_is_unknown(machine: Any, row: Any) -> None:
    async def story() -> tuple[CheckResult, CheckResult]:
        runner = CheckRunner(machine.settings, checks=[row("probe", lambda look: [])])
        before = threading.stack_size(1 << 46)  # more than there is: as at a limit of processes or of memory
        try:
            (first,) = await runner.check_now(max_age_s=-1)
        finally:
            threading.stack_size(before)
        (second,) = await runner.check_now(max_age_s=-1)
        return first, second

    first, second = asyncio.run(story())
    assert (first.state, first.detail) == (CheckState.UNKNOWN, "can't start new thread")
    assert second.state is CheckState.OK


@pytest.mark.parametrize("hangs", [True, False])
def test_a_check_that_had_more_to_say_is_not_asked_without_a_pause_when_it_breaks(
    machine: Any, row: Any, hangs: bool
) -> None:
    blocked = threading.Event()
    results: list[CheckResult] = []

    def of(check: str) -> list[CheckResult]:
        return [result for result in results if result.check == check]

    def probe(look: Look) -> list[Finding]:
        if not look.kept.unfinished:
            look.kept.unfinished = True
            return []
        if hangs:
            blocked.wait()
        raise RuntimeError("it broke")

    async def story() -> None:
        await eventually(lambda: CheckState.UNKNOWN in [result.state for result in of("probe")])
        results.clear()
        await eventually(lambda: len(of("clock")) >= 10)  # of a check that is due every 20 ms

    rows = [row("probe", probe, interval_s=60.0, deadline_s=0.05), row("clock", lambda look: [])]
    runner = CheckRunner(machine.settings, checks=rows, on_result=results.append)
    try:
        asyncio.run(while_running(runner, story))
    finally:
        blocked.set()
    assert of("probe") == []


def test_an_unknown_sample_ends_no_finding(machine: Any, row: Any) -> None:
    answers: list[Any] = [[broken()]]

    def probe(look: Look) -> list[Finding]:
        if not answers:
            raise Unknown("cannot look")
        return answers.pop()

    async def story() -> CheckResult:
        runner = CheckRunner(machine.settings, checks=[row("probe", probe)])
        for _ in range(5):
            (result,) = await runner.check_now(max_age_s=-1)
        return result

    result = asyncio.run(story())
    assert result.state is CheckState.UNKNOWN
    assert [finding.code for finding in result.findings] == ["broken"]


def test_what_a_check_uses_is_not_closed_under_it_but_once_when_it_ends(machine: Any, row: Any) -> None:
    """As at new settings during a sample: its descriptor would be that of the next runner's reader."""
    begun, goes_on = threading.Event(), threading.Event()
    closed: list[str] = []

    class Held:
        def close(self) -> None:
            closed.append(threading.current_thread().name)

    def probe(look: Look) -> list[Finding]:
        look.kept.own(Held)
        begun.set()
        goes_on.wait()
        return []

    async def story() -> None:
        await eventually(begun.is_set)

    runner = CheckRunner(machine.settings, checks=[row("probe", probe)])
    asyncio.run(while_running(runner, story))
    assert closed == []
    goes_on.set()
    asyncio.run(eventually(lambda: bool(closed)))
    runner.close()
    assert closed == ["check-probe"]


def test_what_a_check_made_later_is_closed_first(machine: Any, row: Any) -> None:
    """It may use what came before."""
    closed: list[str] = []

    class First:
        def close(self) -> None:
            closed.append("first")

    class Plain:
        pass

    class Last:
        def close(self) -> None:
            closed.append("last")

    def probe(look: Look) -> list[Finding]:
        for kind in (First, Plain, Last, First):
            look.kept.own(kind)
        return []

    runner = CheckRunner(machine.settings, checks=[row("probe", probe)])
    asyncio.run(runner.check_now())
    runner.close()
    runner.close()
    assert closed == ["last", "first"]


def test_names_that_are_no_text_can_be_told_and_kept(machine: Any, row: Any) -> None:
    """As of a control group, which a user whom one was delegated names as he likes."""
    name = b"/user.slice/\xff".decode(errors="surrogateescape")

    def probe(look: Look) -> list[Finding]:
        found = msgspec.structs.replace(broken(name), evidence=(f"killed in {name}",), cgroup=name)
        raise Unknown(f"no more of {name}", (found, msgspec.structs.replace(found, code="e", event=True)))

    async def story() -> tuple[CheckResult, bytes]:
        runner = CheckRunner(machine.settings, checks=[row("probe", probe)])
        (result,) = await runner.check_now()
        return result, runner.snapshot()

    result, snapshot = asyncio.run(story())
    assert {finding.entity for finding in result.findings} == {"/user.slice/\\udcff"}
    assert b"killed in /user.slice/" in msgspec.json.encode(result)
    assert b"/user.slice/" in snapshot


def test_a_check_that_never_answers_is_a_finding_until_it_answers(machine: Any, row: Any) -> None:
    blocked = threading.Event()
    calls: list[int] = []

    def hangs(look: Look) -> list[Finding]:
        calls.append(1)
        blocked.wait(180)
        return []

    async def story() -> None:
        results: list[CheckResult] = []
        rows = [row("hangs", hangs, deadline_s=0.05), row("good", lambda look: [])]
        runner = CheckRunner(machine.settings, checks=rows, on_result=results.append)

        def last(name: str) -> CheckResult | None:
            return next((result for result in reversed(results) if result.check == name), None)

        async def body() -> None:
            await eventually(lambda: bool((found := last("hangs")) and found.findings))
            found = last("hangs")
            assert found is not None
            assert found.state is CheckState.UNKNOWN
            assert [(item.component, item.entity) for item in found.findings] == [
                (Component.AGENT, "check hangs")
            ]
            goods = sum(result.check == "good" for result in results)
            await eventually(lambda: sum(result.check == "good" for result in results) > goods + 3)
            assert len(calls) == 1  # it is not started again beside itself
            assert runner.stats["hangs"].timeouts == 1
            blocked.set()
            await eventually(
                lambda: bool((now := last("hangs")) and now.state is CheckState.OK and not now.findings)
            )

        await while_running(runner, body)

    asyncio.run(story())


def test_fresh_results_are_used_again_and_old_ones_are_not(machine: Any, row: Any, clock: Any) -> None:
    calls: list[int] = []

    def probe(look: Look) -> list[Finding]:
        calls.append(1)
        return []

    async def story() -> None:
        runner = CheckRunner(machine.settings, (), clock, checks=[row("probe", probe)])
        first = await runner.check_now()
        clock.mono_s += 9
        assert await runner.check_now() == first
        assert len(calls) == 1
        clock.mono_s += 2
        await runner.check_now()
        assert len(calls) == 2

    asyncio.run(story())


def test_two_who_ask_at_once_share_one_sample(machine: Any, row: Any) -> None:
    calls: list[int] = []

    def probe(look: Look) -> list[Finding]:
        calls.append(1)
        return []

    async def story() -> None:
        runner = CheckRunner(machine.settings, checks=[row("probe", probe)])
        await asyncio.gather(runner.check_now(), runner.check_now())

    asyncio.run(story())
    assert len(calls) == 1


def test_checks_are_chosen_by_name_and_by_component(machine: Any) -> None:
    async def story() -> None:
        runner = CheckRunner(machine.settings)
        assert [result.check for result in await runner.check_now(["disk"])] == ["disk", "block"]
        assert {result.check for result in await runner.check_now(["disk", "system"])} >= {"disk", "memory"}
        with pytest.raises(KeyError):
            await runner.check_now(["no-such-check"])
        runner.close()

    asyncio.run(story())


def test_an_xid_in_the_kernel_log_becomes_a_finding_and_a_forged_one_does_not(machine: Any) -> None:
    async def story() -> None:
        runner = CheckRunner(machine.settings)
        machine.log("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.")
        machine.log("NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus.", facility=1)
        (result,) = await runner.check_now(["kernel"])
        assert [(finding.entity, finding.code) for finding in result.findings] == [
            ("GPU 0000:18:00.0", "XID 79")
        ]
        assert result.state is CheckState.FOUND
        assert runner.counters["kernel"] == {"lost": 0, "untrusted": 1, "garbled": 0}
        runner.close()

    asyncio.run(story())


def test_a_flood_of_kernel_lines_loses_no_distinct_fault(machine: Any) -> None:
    lines = [f"NVRM: Xid (PCI:0000:18:00): 45, pid=1, name=python, Ch {index:08x}" for index in range(20_000)]
    lines[12_345] = "NVRM: Xid (PCI:0000:2a:00): 79, GPU has fallen off the bus."

    async def story() -> None:
        runner = CheckRunner(machine.settings)
        machine.log(*lines)
        (result,) = await runner.check_now(["kernel"])
        assert {finding.code: finding.count for finding in result.findings} == {"XID 79": 1, "XID 45": 19_999}
        runner.close()

    asyncio.run(story())


def test_lost_kernel_lines_are_said_once(machine: Any) -> None:
    async def story() -> None:
        runner = CheckRunner(machine.settings)
        machine.kmsg.write_bytes(encode_record("one", 1) + encode_record("nine", 9))
        for _ in range(2):
            (result,) = await runner.check_now(["kernel"], max_age_s=-1)
        (finding,) = result.findings
        assert (finding.code, finding.count, finding.evidence) == ("kernel-log-lost", 1, ("7 messages",))
        runner.close()

    asyncio.run(story())


def test_a_restarted_runner_neither_loses_nor_repeats_kernel_lines(machine: Any) -> None:
    async def one(data: bytes | None) -> tuple[bytes, dict[str, int]]:
        runner = CheckRunner(machine.settings)
        if data is not None:
            runner.restore(data)
        (result,) = await runner.check_now(["kernel"])
        runner.close()
        return runner.snapshot(), {finding.code: finding.count for finding in result.findings}

    machine.log("NVRM: Xid (PCI:0000:18:00): 31, pid=1, name=a, MMU Fault")
    data, counts = asyncio.run(one(None))
    assert counts == {"XID 31": 1}
    machine.log("NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.")  # while no agent runs
    data, counts = asyncio.run(one(data))
    assert counts == {"XID 79": 1, "XID 31": 1}
    _, counts = asyncio.run(one(data))
    assert counts == {"XID 79": 1, "XID 31": 1}


@pytest.mark.parametrize("data", [b"", b"{", b"null", b'{"book": 7}', b"\xff"])
def test_a_damaged_snapshot_is_set_aside(machine: Any, data: bytes) -> None:
    runner = CheckRunner(machine.settings)
    runner.restore(data)
    assert runner.book.active() == ()


def test_a_readable_kernel_log_wakes_its_check_before_the_interval(machine: Any) -> None:
    machine.kmsg.unlink()
    os.mkfifo(machine.kmsg)
    writer = os.open(machine.kmsg, os.O_RDWR)
    slow = [
        Check(
            name=item.name,
            component=item.component,
            module=item.module,
            interval_s=3600.0,
            deadline_s=item.deadline_s,
            needs=item.needs,
        )
        for item in CHECKS
        if item.name == "kernel"
    ]
    results: list[CheckResult] = []

    async def story() -> None:
        runner = CheckRunner(machine.settings, checks=slow, on_result=results.append)

        async def body() -> None:
            await eventually(lambda: len(results) == 1)
            os.write(writer, encode_record("NVRM: Xid (PCI:0000:18:00): 79, gone", 1))
            await eventually(lambda: bool(results[-1].findings))

        await while_running(runner, body)

    asyncio.run(story())
    os.close(writer)


def test_an_unreadable_kernel_log_is_unknown_not_healthy(machine: Any) -> None:
    machine.kmsg.unlink()
    (result,) = asyncio.run(CheckRunner(machine.settings).check_now(["kernel"]))
    assert result.state is CheckState.UNKNOWN
    assert str(machine.kmsg) in result.detail


def test_stopping_the_runner_ends_the_nvml_child(machine: Any, nvml: Any) -> None:
    machine.add_pci("0000:18:00.0")
    nvml("0000:18:00.0")

    async def story() -> int:
        runner = CheckRunner(machine.settings)
        pids: list[int] = []

        async def body() -> None:
            (result,) = await runner.check_now(["nvml"], max_age_s=60)
            assert result.state is CheckState.OK
            pids.append(runner._running["nvml"].kept.own(nvml_check.Memory).child.pid)

        await while_running(runner, body)
        return pids[0]

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(story()), 0)


def test_the_table_is_whole() -> None:
    assert len({item.name for item in CHECKS}) == len(CHECKS)
    for item in CHECKS:
        assert item.deadline_s > 0
        assert item.needs


# ---------------------------------------------------------------- who decides now


@pytest.mark.parametrize(
    ("component", "severity"),
    [(Component.GPU, Severity.DEGRADED), (Component.RUNTIME, Severity.WARNING)],
)
def test_cards_that_do_not_answer_whoever_decides_now_are_degraded(
    machine: Any, row: Any, component: Component, severity: Severity
) -> None:
    end = threading.Event()

    def hangs(look: Look) -> list[Finding]:
        end.wait(60)
        return []

    probe = msgspec.structs.replace(row("probe", hangs, deadline_s=60.0), component=component)
    runner = CheckRunner(machine.settings, checks=[probe, row("quick", lambda look: [])])
    hung, quick = asyncio.run(runner.check_now(within_s=0.2))
    end.set()
    assert (hung.state, hung.detail) == (CheckState.UNKNOWN, "no answer within 0.2 s")
    assert [(one.code, one.severity) for one in hung.findings] == [("check-hangs", severity)]
    assert quick.state is CheckState.OK


def test_a_slow_check_that_was_asked_for_has_its_own_deadline(machine: Any, row: Any) -> None:
    begun = threading.Event()

    def slow(look: Look) -> list[Finding]:
        begun.wait(0.5)
        return [broken()]

    probe = msgspec.structs.replace(row("probe", slow, deadline_s=60.0), slow=True)
    (result,) = asyncio.run(CheckRunner(machine.settings, checks=[probe]).check_now(["probe"], within_s=0.1))
    assert result.state is CheckState.FOUND


def test_a_busy_machine_is_not_judged_by_the_deadline_of_a_quick_check_of_its_cards(
    machine: Any, row: Any
) -> None:
    def slow(look: Look) -> list[Finding]:
        time.sleep(0.5)
        return []

    probe = msgspec.structs.replace(row("probe", slow, deadline_s=0.1), component=Component.GPU)
    (result,) = asyncio.run(CheckRunner(machine.settings, checks=[probe]).check_now(within_s=60.0))
    assert (result.state, result.findings) == (CheckState.OK, ())


def test_a_slow_check_takes_no_time_from_what_a_quick_one_has_still_to_read(machine: Any, row: Any) -> None:
    read = threading.Event()

    class Memory:
        rounds = 0

    def slow(look: Look) -> list[Finding]:
        read.wait(10)
        return []

    def reads(look: Look) -> list[Finding]:
        memory = look.kept.own(Memory)
        memory.rounds += 1
        look.kept.unfinished = memory.rounds < 3
        if look.kept.unfinished:
            return []
        read.set()
        return [broken()]

    first = msgspec.structs.replace(row("first", slow, deadline_s=60.0), slow=True)
    runner = CheckRunner(machine.settings, checks=[first, row("probe", reads)])
    _, log = asyncio.run(runner.check_now(("first", "probe"), within_s=5.0))
    assert [one.code for one in log.findings] == [broken().code]


def test_what_has_still_to_be_read_has_what_is_left_of_the_time(machine: Any, row: Any) -> None:
    end = threading.Event()

    def reads(look: Look) -> list[Finding]:
        if look.kept.unfinished:
            end.wait(60)
        look.kept.unfinished = True
        return []

    runner = CheckRunner(machine.settings, checks=[row("log", reads, deadline_s=30.0)])
    began_s = time.monotonic()
    (result,) = asyncio.run(runner.check_now(within_s=1.0))
    end.set()
    assert (result.state, time.monotonic() - began_s < 20) == (CheckState.UNKNOWN, True)


def test_the_child_of_a_check_that_hangs_does_not_outlive_the_runner(machine: Any, row: Any) -> None:
    """Who looks once ends then: with each look one more would stay behind."""
    child = LineChild(["sleep", "600"])

    def asks(look: Look) -> list[Finding]:
        look.kept.own(ChildMemory).child = child
        try:
            child.ask(b"", 600.0)
        except ChildBroke:
            return [broken()]
        return []

    async def story() -> CheckResult:
        runner = CheckRunner(machine.settings, checks=[row("probe", asks, deadline_s=600.0)])
        look = asyncio.create_task(runner.check_now())
        await eventually(lambda: child.pid)
        runner.close()
        (result,) = await look
        return result

    assert asyncio.run(story()).state is CheckState.FOUND


def test_what_stands_is_not_made_milder_by_a_look_that_saw_less(machine: Any, row: Any) -> None:
    fatal = msgspec.structs.replace(
        broken(), severity=Severity.FATAL, action="RESTART_BM", summary="for long"
    )

    class Memory:
        looks = 0

    def looks(look: Look) -> list[Finding]:
        memory = look.kept.own(Memory)
        memory.looks += 1
        raise Unknown("no answer", (fatal if memory.looks == 1 else broken(),))

    runner = CheckRunner(machine.settings, checks=[row("probe", looks)])
    for _ in range(2):
        (result,) = asyncio.run(runner.check_now(max_age_s=0.0))
    (found,) = result.findings
    assert (found.severity, found.action, found.summary) == (Severity.FATAL, "RESTART_BM", "for long")


def test_a_check_may_ask_to_be_sampled_again_soon(machine: Any, row: Any) -> None:
    looks: list[float] = []

    def check(look: Look) -> list[Finding]:
        looks.append(look.now.mono_s)
        if len(looks) < 3:
            look.kept.again_s = 0.01
        return []

    runner = CheckRunner(machine.settings, checks=[row("probe", check, interval_s=3600.0)])
    asyncio.run(while_running(runner, lambda: eventually(lambda: len(looks) == 3)))
