"""Ending an incarnation: who is asked, who is killed, and that nothing is left."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from sentinel.cluster.local.processes import Proc
from sentinel.cluster.local.tracked import Tracked
from tests.cluster.local_jobs import Site, alive, python, srun, with_site
from tests.waits import eventually

SLEEP = ("sleep", "600")
IGNORES_TERM = python(
    "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready'); time.sleep(600)"
)


@with_site
async def test_a_killed_rank_is_told_with_its_signal_and_survivors_are_stopped(site: Site) -> None:
    ranks = await site.start(SLEEP, nproc=3)
    os.kill(ranks[1].pid, signal.SIGKILL)
    lost = await site.ended(1)
    assert (lost.signal, lost.code, lost.stopped_by_us) == (signal.SIGKILL, None, False)
    outcome = await site.cluster.stop("job", 1, 10.0)
    assert (outcome.gone, outcome.killed, outcome.stuck) == (True, 0, ())
    assert [(e.signal, e.stopped_by_us) for e in site.exits if e.rank != 1] == [(signal.SIGTERM, True)] * 2
    assert not any(alive(rank.pid) for rank in ranks)


@with_site
async def test_a_rank_that_catches_sigterm_ends_in_its_own_way(site: Site) -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(7)); print('ready'); time.sleep(600)"
    )
    await site.start(python(code))
    await site.logged("ready")
    assert (await site.cluster.stop("job", 1, 20.0)).killed == 0
    assert site.exits[0].code == 7


@with_site
async def test_a_rank_that_ignores_sigterm_is_killed_after_the_grace(site: Site) -> None:
    await site.start(IGNORES_TERM)
    await site.logged("ready")
    outcome = await site.cluster.stop("job", 1, 0.3)
    assert (outcome.gone, outcome.killed) == (True, 1)
    assert site.exits[0].signal == signal.SIGKILL


@with_site
async def test_a_stopped_rank_acts_on_sigterm_at_once(site: Site) -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(3)); print('ready'); time.sleep(600)"
    )
    (rank,) = await site.start(python(code))
    await site.logged("ready")
    os.kill(rank.pid, signal.SIGSTOP)
    outcome = await site.cluster.stop("job", 1, 600.0)  # the grace is longer than the test may last
    assert (outcome.gone, outcome.killed) == (True, 0)
    assert site.exits[0].code == 3


@with_site
async def test_grandchildren_that_became_daemons_are_gone_after_a_stop(site: Site) -> None:
    code = """
        import os, signal, time
        signal.signal(15, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve('/bin/sleep', ['sleep', '600.777'], {})  # with an empty environment
            os._exit(0)
        os.wait()
        signal.signal(15, signal.SIG_DFL)
        print('ready')
        time.sleep(600)
    """
    (rank,) = await site.start(python(code))
    await site.logged("ready")
    pids = site.cluster.processes("job", 1)
    assert len(pids) == 2
    assert rank.pid in pids
    assert (await site.cluster.stop("job", 1, 1.0)).gone
    assert not any(alive(pid) for pid in pids)


@with_site
async def test_helpers_are_left_alone_while_the_rank_saves(site: Site) -> None:
    """A data loader that dies makes its program raise in the middle of the save."""
    code = """
        import os, signal, sys, time
        helper = os.fork()
        if helper == 0:
            time.sleep(600)
        def save(*_):
            time.sleep(0.3)
            print('helper', os.waitpid(helper, os.WNOHANG)[0])
            sys.exit(0)
        signal.signal(15, save)
        print('ready')
        time.sleep(600)
    """
    await site.start(python(code))
    await site.logged("ready")
    outcome = await site.cluster.stop("job", 1, 20.0)
    assert (outcome.gone, outcome.killed) == (True, 0)
    assert "helper 0" in site.log()  # it lived until its rank had ended, then SIGTERM was enough


@with_site
async def test_a_program_under_a_shell_has_the_whole_grace(site: Site) -> None:
    program = site.root / "train.py"
    program.write_text(
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(1.0)\n    print('saved')\n    sys.exit(0)\n"
        "signal.signal(15, save)\nprint('ready')\ntime.sleep(600)\n"
    )
    await site.start(("sh", "-c", f"{python('')[0]} -IuS {program}; echo after"))
    await site.logged("ready")
    outcome = await site.cluster.stop("job", 1, 5.0)  # a tenth of it would be too short for the save
    assert (outcome.gone, outcome.killed) == (True, 0)
    assert "saved" in site.log()


@with_site
async def test_a_rank_whose_launcher_ends_and_passes_nothing_on_has_the_whole_grace(site: Site) -> None:
    """`accelerate launch` of one process, `time -v`."""
    launcher, program = site.root / "accelerate", site.root / "train.py"
    program.write_text(
        "import signal, sys, time\n"
        "def save(*_):\n    time.sleep(1.0)\n    print('saved')\n    sys.exit(0)\n"
        "signal.signal(15, save)\nprint('ready')\ntime.sleep(600)\n"
    )
    executable = python("")[0]
    launcher.write_text(f"import subprocess\nsubprocess.run([{executable!r}, '-IuS', {str(program)!r}])\n")
    (first,) = await site.start((executable, "-W", "ignore", str(launcher)), nproc=None)
    await site.logged("ready")
    outcome = await site.cluster.stop("job", 1, 5.0)  # a tenth of it would be too short for the save
    assert (outcome.gone, outcome.killed) == (True, 0)
    assert site.exits[0].signal == signal.SIGTERM, "it passed nothing on"
    assert "saved" in site.log()
    assert not alive(first.pid)


@with_site
async def test_stopping_what_is_not_there_is_done_already(site: Site) -> None:
    assert (await site.cluster.stop("job", 1, 5.0)).gone
    await site.start(("true",))
    await site.ended()
    assert (await site.cluster.stop("job", 1, 5.0)).gone
    assert (await site.cluster.stop("job", 1, 5.0)).gone


@with_site
async def test_a_stopped_supervisor_does_not_hold_up_a_stop(site: Site) -> None:
    await site.start(SLEEP)
    os.kill(site.supervisor_pid(), signal.SIGSTOP)
    assert (await site.cluster.stop("job", 1, 5.0)).gone
    assert site.exits[0].signal == signal.SIGTERM


@with_site
async def test_processes_that_fork_while_they_are_killed_do_not_escape(site: Site) -> None:
    code = """
        import os, signal, time
        signal.signal(15, signal.SIG_IGN)
        print('ready')
        end = time.time() + 60
        while time.time() < end:
            if os.fork():
                os._exit(0)  # a new pid at each turn
            os.setsid()
            time.sleep(0.005)
    """
    await site.start(python(code))
    await site.ended()
    assert (await site.cluster.stop("job", 1, 0.2)).gone
    assert site.cluster.processes("job", 1) == []


@with_site
async def test_what_outlives_sigkill_is_named_after_a_bounded_time(site: Site) -> None:
    """A supervisor that cannot reap stands for a process that SIGKILL does not end."""
    (rank,) = await site.start(SLEEP)
    tracked = site.cluster._tracked["job"]
    assert tracked.link
    tracked.link.close()  # nobody tells us that the rank is gone
    before = time.monotonic()
    site.cluster._stuck_after_s = 0.3
    outcome = await site.cluster.stop("job", 1, 0.1)
    assert time.monotonic() - before < 10
    assert not outcome.gone
    assert outcome.stuck
    await eventually(lambda: not Path(f"/proc/{rank.pid}").exists())
    site.cluster._tracked.clear()
    assert (await site.cluster.stop("job", 1, 0.1)).gone


SHEPHERD = """
import os, signal
ours, its = os.pipe()
if os.fork() == 0:
    os.close(its)
    os.read(ours, 1)  # until srun is gone
    {then}
    os._exit(0)
print("ready", flush=True)
signal.pause()
"""


@with_site
async def test_the_child_by_which_srun_ends_its_tasks_is_not_killed_before_it_has_done_that(
    site: Site,
) -> None:
    done = site.root / "ended"
    await site.start(srun(site, SHEPHERD.format(then=f"open({str(done)!r}, 'x').close()")))
    await site.logged("ready")
    outcome = await site.cluster.stop("job", 1, 0.0)
    assert (outcome.gone, outcome.killed) == (True, 1)
    assert done.exists()


@with_site
async def test_a_child_of_srun_that_does_not_come_to_an_end_is_killed_too(site: Site) -> None:
    await site.start(srun(site, SHEPHERD.format(then="signal.pause()")))
    await site.logged("ready")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sentinel.cluster.local.stop.SHEPHERD_S", 0.2)
        outcome = await site.cluster.stop("job", 1, 0.0)
    assert (outcome.gone, outcome.killed) == (True, 2)


@with_site
async def test_the_child_of_an_srun_that_is_gone_already_is_spared_too(site: Site) -> None:
    fifo, done = site.root / "slurm", site.root / "ended"
    os.mkfifo(fifo)
    code = SHEPHERD.format(then=f"open({str(fifo)!r}).read(); open({str(done)!r}, 'x').close()")
    (rank,) = await site.start(srun(site, code))
    await site.logged("ready")
    os.kill(rank.pid, signal.SIGKILL)
    await site.ended()
    looks = 0

    async def answer_after_a_sweep() -> None:
        """As Slurm does, when at least one sweep of SIGKILL has gone by."""
        await eventually(lambda: looks > 1)
        fifo.write_text("ended")

    members = Tracked.members

    def looked(tracked: Tracked) -> list[Proc]:
        nonlocal looks
        looks += 1
        return members(tracked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tracked, "members", looked)
        answer = asyncio.create_task(answer_after_a_sweep())
        assert (await site.cluster.stop("job", 1, 0.0)).gone
        await answer
    assert done.exists()
