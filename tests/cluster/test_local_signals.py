"""Save signals reach the ranks that catch them and nobody else; stacks and usage of ranks."""

import os
import shlex
import signal
import sys
import textwrap
from pathlib import Path

import pytest

from sentinel.core.stacks.stillness import Looks
from tests.cluster.local_jobs import Site, alive, python, srun, with_site
from tests.waits import eventually

CATCHES = """
    import os, signal, sys, time
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'saved by %d%c' % (os.getpid(), 10)))
    print('ready')
    while True:
        signal.pause()
"""
WITH_FORKED_LOADERS = """
import multiprocessing, os, signal, time

def load(queue):
    while True:
        queue.put(os.getpid())

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'saved by %d%c' % (os.getpid(), 10)))
    context = multiprocessing.get_context("fork")
    queue = context.Queue(maxsize=4)
    for _ in range(3):
        context.Process(target=load, args=(queue,), daemon=True).start()
    pids = set()
    while len(pids) < 3:
        pids.add(queue.get())
    print("ready", flush=True)
    while True:
        queue.get()
        time.sleep(0.02)
"""
# Both catch the signal.
WITH_A_CHILD = """
    import os, signal
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'saved by %d%c' % (os.getpid(), 10)))
    if os.fork():
        print('ready')
    while True:
        signal.pause()
"""
# Stands for torchrun: RANK and LOCAL_RANK reach only what it starts.
LAUNCHER = f"""
    import os, subprocess, sys, time
    worker = {textwrap.dedent(CATCHES)!r}
    for rank in range(2):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank))
        subprocess.Popen([sys.executable, '-I', '-S', '-u', '-c', worker], env=env)
    time.sleep(600)
"""
# Stands for srun and Slurm's daemons: two tasks, which are not below it, each with a helper.
OF_SLURM = f"""
    import os, signal
    task = {textwrap.dedent(CATCHES)!r}
    for number in range(2):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open('/proc/self/comm', 'w') as name:
                    name.write('slurmstepd')
                if os.fork():
                    os.wait()
                    os._exit(0)
                slurm = dict(SLURM_JOB_ID='7', SLURM_STEP_ID='0', SLURM_STEP_NUM_NODES='{{nodes}}')
                slurm |= dict(SLURM_PROCID=str(number), SLURM_TASK_PID=str(os.getpid()))
                words = ['python', '-I', '-S', '-u', '-c', 'import os; os.fork()' + task]
                os.execve({sys.executable!r}, words, os.environ | slurm)
            os._exit(0)
        os.wait()
    signal.pause()
"""


def named(site: Site, name: str, code: str) -> tuple[str, ...]:
    """A launcher is known by its name."""
    (site.root / name).write_text(textwrap.dedent(code))
    return (sys.executable, "-u", str(site.root / name))


@with_site
async def test_forked_data_loaders_inherit_the_handler_and_are_not_signalled(site: Site) -> None:
    program = site.root / "train.py"
    program.write_text(WITH_FORKED_LOADERS)
    ranks = await site.start((sys.executable, str(program)), nproc=2)
    for rank in (0, 1):
        await site.logged("ready", rank=rank)
    helpers = [pid for pid in site.cluster.processes("job", 1) if pid not in {rank.pid for rank in ranks}]
    assert len(helpers) == 6
    assert await site.cluster.save_capable("job", 1, "SIGUSR1") == {0: True, 1: True}
    outcome = await site.cluster.signal_ranks("job", 1, [0, 1], "SIGUSR1")
    assert (outcome.sent, outcome.refused) == ((0, 1), {})
    for rank in ranks:
        assert f"saved by {rank.pid}" in await site.logged("saved by", rank=rank.rank)
    outcome = await site.cluster.stop("job", 1, 10.0)
    assert outcome.gone
    assert [site.log(rank=rank).count("saved by") for rank in (0, 1)] == [1, 1]
    assert not any(alive(pid) for pid in helpers)


@with_site
async def test_a_rank_that_does_not_catch_the_signal_is_spared(site: Site) -> None:
    (rank,) = await site.start(("sleep", "600"))
    outcome = await site.cluster.signal_ranks("job", 1, [0, 5], "SIGUSR1")
    assert (outcome.sent, outcome.refused) == ((), {0: "does not catch SIGUSR1", 5: "gone"})
    assert await site.cluster.save_capable("job", 1, "SIGUSR1") == {0: False}
    assert alive(rank.pid)


@with_site
async def test_a_rank_that_is_gone_is_said_to_be(site: Site) -> None:
    (rank,) = await site.start(("sleep", "600"))
    os.kill(rank.pid, signal.SIGKILL)
    await site.ended()
    assert (await site.cluster.signal_ranks("job", 1, [0], "SIGUSR1")).refused == {0: "gone"}
    assert (await site.cluster.signal_ranks("job", 9, [0], "SIGUSR1")).refused == {0: "gone"}


@with_site
async def test_under_a_launcher_its_workers_are_the_ranks(site: Site) -> None:
    (launcher,) = await site.start(python(LAUNCHER), nproc=None)
    await eventually(lambda: site.log().count("ready") == 2)
    found = site.cluster.find_ranks("job", 1)
    assert sorted(found) == [0, 1]
    assert launcher.pid not in {proc.pid for proc in found.values()}
    assert (await site.cluster.signal_ranks("job", 1, [0, 1], "SIGUSR1")).sent == (0, 1)
    await eventually(lambda: site.log().count("saved by") == 2)


@with_site
async def test_a_launcher_that_inherited_rank_variables_is_no_rank(site: Site) -> None:
    (launcher,) = await site.start(python(LAUNCHER), nproc=None, RANK="7", LOCAL_RANK="7")
    await eventually(lambda: site.log().count("ready") == 2)
    found = site.cluster.find_ranks("job", 1)
    assert sorted(found) == [0, 1]
    assert launcher.pid not in {proc.pid for proc in found.values()}


@with_site
async def test_what_mpirun_and_srun_start_are_ranks(site: Site) -> None:
    for incarnation, (whole, local) in enumerate(
        [
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
            ("PMI_RANK", "MPI_LOCALRANKID"),
            ("SLURM_PROCID", "SLURM_LOCALID"),
        ],
        1,
    ):
        launcher = LAUNCHER.replace("LOCAL_RANK", local).replace(", RANK=", f", {whole}=")
        (process,) = await site.start(named(site, "mpirun", launcher), incarnation=incarnation, nproc=None)
        await eventually(lambda k=incarnation: site.log(k).count("ready") == 2)
        found = site.cluster.find_ranks("job", incarnation)
        assert sorted(found) == [0, 1]
        assert process.pid not in {proc.pid for proc in found.values()}
        await site.cluster.stop("job", incarnation, 0.0)


@with_site
async def test_torchrun_in_a_batch_script_of_slurm_is_a_launcher(site: Site) -> None:
    await site.start(named(site, "torchrun", LAUNCHER), nproc=None, SLURM_PROCID="0", SLURM_LOCALID="0")
    await eventually(lambda: site.log().count("ready") == 2)
    assert sorted(site.cluster.find_ranks("job", 1)) == [0, 1]


# What platforms give the one process of each machine: here of the second of three. KubeDL and Kubeflow (PyTorchJob;
# TFJob), Volcano with its plugin for PyTorch.
OF_MACHINES = {
    "kubedl": {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456"},
    "tfjob": {
        "RANK": "1",
        "TF_CONFIG": '{"cluster": {"worker": ["a:2222", "b:2222", "c:2222"]}, "task": {"type": "worker", "index": 1}}',
    },
    "volcano": {"RANK": "1", "WORLD_SIZE": "3", "VC_TASK_INDEX": "1", "VK_TASK_INDEX": "1"},
}
# Starts also what has the number of the machine only, and the port of the ranks.
ON_A_MACHINE = LAUNCHER.replace(
    "time.sleep(600)",
    "subprocess.Popen(['sleep', '600'], env=dict(os.environ, MASTER_PORT='29500'))\n"
    "    print('all')\n    time.sleep(600)",
)


@pytest.mark.parametrize("name", ["torchrun", "train.py"])
@pytest.mark.parametrize("platform", OF_MACHINES)
def test_the_number_that_a_platform_gives_a_machine_is_no_rank_and_those_of_its_workers_are(
    platform: str, name: str, tmp_path: Path
) -> None:
    """With several workers; and with one on each machine, which then has its number, where the launcher is known by
    its name."""

    @with_site
    async def found(site: Site) -> None:
        for incarnation, ranks in enumerate([(2, 3), (1,)] if name == "torchrun" else [(2, 3)], 1):
            program = ON_A_MACHINE.replace("range(2)", f"range({len(ranks)})")
            program = program.replace("RANK=str(rank),", f"RANK=str({ranks[0]} + rank),", 1)
            (launcher,) = await site.start(
                named(site, name, program), incarnation, nproc=None, **OF_MACHINES[platform]
            )
            await site.logged("all", incarnation)
            await eventually(lambda k=incarnation, ids=ranks: site.log(k).count("ready") == len(ids))
            of_job = site.cluster.find_ranks("job", incarnation)
            assert tuple(sorted(of_job)) == ranks
            assert launcher.pid not in {proc.pid for proc in of_job.values()}
            sent = await site.cluster.signal_ranks("job", incarnation, list(ranks), "SIGUSR1")
            assert sent.sent == ranks
            await site.cluster.stop("job", incarnation, 0.0)

    found(tmp_path)


@pytest.mark.parametrize("platform", OF_MACHINES)
def test_a_program_that_a_platform_gave_the_number_of_its_machine_is_rank_0_to_itself(
    platform: str, tmp_path: Path
) -> None:
    @with_site
    async def found(site: Site) -> None:
        (process,) = await site.start(python(CATCHES), nproc=None, **OF_MACHINES[platform])
        await site.logged("ready")
        of_job = site.cluster.find_ranks("job", 1)
        assert {rank: proc.pid for rank, proc in of_job.items()} == {0: process.pid}

    found(tmp_path)


# Of several machines: each numbers on from those of the ones before, in a world of four.
OF_SEVERAL = LAUNCHER.replace(
    "env = dict(os.environ, RANK=str(rank)",
    "env = dict(os.environ, WORLD_SIZE='4', RANK=str(rank + 2 * int(os.environ['RANK']))",
)


@with_site
async def test_two_launchers_mean_the_ranks_of_both(site: Site) -> None:
    launchers = await site.start(named(site, "torchrun", OF_SEVERAL), nproc=2)
    for rank in (0, 1):
        await eventually(lambda rank=rank: site.log(rank=rank).count("ready") == 2)
    found = site.cluster.find_ranks("job", 1)
    assert sorted(found) == [0, 1, 2, 3]
    assert not {launcher.pid for launcher in launchers} & {proc.pid for proc in found.values()}
    assert (await site.cluster.signal_ranks("job", 1, [0, 1, 2, 3], "SIGUSR1")).sent == (0, 1, 2, 3)
    for rank in (0, 1):
        await eventually(lambda rank=rank: site.log(rank=rank).count("saved by") == 2)
    assert {rank: sorted(own) for rank, own in site.cluster.find_workers("job", 1).items()} == {
        0: [0, 1],
        1: [2, 3],
    }
    texts = await site.cluster.stacks("job", 1, [0, 1])
    assert [text.partition(":")[0] for text in texts] == ["rank 0", "rank 1", "rank 2", "rank 3"]


@with_site
async def test_launchers_that_know_nothing_of_each_other_are_counted_through(site: Site) -> None:
    alone = LAUNCHER.replace("env = dict(", "env = dict(MASTER_PORT='29500', **{k: v for k, v in ").replace(
        "os.environ, RANK", "os.environ.items() if k[-4:] not in ('RANK', 'PORT')}, RANK"
    )
    await site.start(named(site, "torchrun", alone), nproc=2)
    for rank in (0, 1):
        await eventually(lambda rank=rank: site.log(rank=rank).count("ready") == 2)
    assert sorted(site.cluster.find_ranks("job", 1)) == [0, 1, 2, 3]


@with_site
async def test_a_launcher_below_a_launcher_is_no_rank(site: Site) -> None:
    inner = named(site, "torchrun", LAUNCHER)
    outer = f"""
        import os, subprocess
        subprocess.run({inner!r}, env=dict(os.environ, OMPI_COMM_WORLD_RANK='0', OMPI_COMM_WORLD_LOCAL_RANK='0'))
    """
    await site.start(named(site, "mpirun", outer), nproc=None)
    await eventually(lambda: site.log().count("ready") == 2)
    assert (await site.cluster.signal_ranks("job", 1, [0, 1], "SIGUSR1")).sent == (0, 1)


# Programs that start others with numbers of their own, and are ranks themselves.
EVALUATES = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'saved by %d%c' % (os.getpid(), 10)))
    for rank in range(2):
        env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2', MASTER_PORT='29501')
        subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'], env=env)
    print('ready')
    while True:
        signal.pause()
"""
NUMBERS_ITSELF = """
    import os, signal, subprocess, sys
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'saved by %d%c' % (os.getpid(), 10)))
    os.environ.update(RANK='0', LOCAL_RANK='0', WORLD_SIZE='1', MASTER_PORT='12355')
    subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(600)'])
    print('ready')
    while True:
        signal.pause()
"""


# Stands for Lightning's launcher: it is the first rank of its machine, and gives the others no RANK. Each has a helper,
# and what the first one runs besides inherits its LOCAL_RANK.
STARTS_THE_OTHERS = f"""
    import os, signal, subprocess, sys
    worker = {"import os, signal; os.fork() or signal.pause()" + chr(10) + textwrap.dedent(CATCHES)!r}
    sleep = 'import time; time.sleep(600)'
    signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b'saved by %d%c' % (os.getpid(), 10)))
    os.fork() or signal.pause()
    os.environ.update(LOCAL_RANK='0', NODE_RANK=os.environ.get('NODE_RANK', '0'), MASTER_ADDR='127.0.0.1')
    subprocess.Popen([sys.executable, '-I', '-S', '-c', sleep])
    for local in (1, 2):
        env = dict(os.environ, LOCAL_RANK=str(local))
        subprocess.Popen([sys.executable, '-I', '-S', '-u', '-c', worker], env=env)
    while True:
        signal.pause()
"""


@with_site
async def test_a_program_that_starts_all_ranks_but_its_own_is_the_first_of_them(site: Site) -> None:
    machines = ({"WORLD_SIZE": "3"}, {"WORLD_SIZE": "6", "NODE_RANK": "1"})
    for incarnation, env in enumerate(machines, 1):
        (first,) = await site.start(python(STARTS_THE_OTHERS), incarnation=incarnation, nproc=None, **env)
        await eventually(lambda k=incarnation: site.log(k).count("ready") == 2)
        found = site.cluster.find_ranks("job", incarnation)
        numbers = [0, 1, 2] if incarnation == 1 else [3, 4, 5]
        assert sorted(found) == numbers
        assert found[numbers[0]].pid == first.pid
        assert (await site.cluster.signal_ranks("job", incarnation, numbers, "SIGUSR1")).sent == (*numbers,)
        await eventually(lambda k=incarnation: site.log(k).count("saved by") == 3)
        await site.cluster.stop("job", incarnation, 0.0)


@with_site
async def test_a_program_that_starts_others_is_no_rank_of_theirs_where_it_need_not_be(site: Site) -> None:
    """It has a number already, or starts a first one that runs the same, or another world than its own would be."""
    from_0 = STARTS_THE_OTHERS.replace("(1, 2)", "(0, 1, 2)")
    cases = (
        (STARTS_THE_OTHERS, {"WORLD_SIZE": "3", "LOCAL_RANK": "0"}, 2),
        (STARTS_THE_OTHERS, {"WORLD_SIZE": "3", "RANK": "0"}, 2),
        (
            STARTS_THE_OTHERS.replace("env = dict(os.environ", "env = dict(os.environ, RANK='0'"),
            {"WORLD_SIZE": "3"},
            2,
        ),
        (from_0, {"WORLD_SIZE": "3"}, 3),
        (STARTS_THE_OTHERS, {"WORLD_SIZE": "4"}, 2),
    )
    for incarnation, (code, env, ready) in enumerate(cases, 1):
        (first,) = await site.start(python(code), incarnation=incarnation, nproc=None, **env)
        await eventually(lambda k=incarnation, n=ready: site.log(k).count("ready") == n)
        found = site.cluster.find_ranks("job", incarnation)
        assert {rank: proc.pid for rank, proc in found.items()} == {0: first.pid}
        await site.cluster.stop("job", incarnation, 0.0)


@with_site
async def test_a_rank_that_starts_an_evaluation_with_numbers_stays_the_rank(site: Site) -> None:
    for nproc in (1, 2):
        ranks = await site.start(python(EVALUATES), incarnation=nproc, nproc=nproc)
        for rank in ranks:
            await site.logged("ready", incarnation=nproc, rank=rank.rank)
        found = site.cluster.find_ranks("job", nproc)
        assert {rank: proc.pid for rank, proc in found.items()} == {rank.rank: rank.pid for rank in ranks}
        await site.cluster.stop("job", nproc, 0.0)


@with_site
async def test_a_program_that_sets_its_own_number_is_not_its_helper(site: Site) -> None:
    given = ({}, {"SLURM_PROCID": "3", "SLURM_LOCALID": "0"}, {"RANK": "0", "LOCAL_RANK": "0"})
    for incarnation, env in enumerate(given, 1):
        (process,) = await site.start(python(NUMBERS_ITSELF), incarnation=incarnation, nproc=None, **env)
        await site.logged("ready", incarnation=incarnation)
        found = site.cluster.find_ranks("job", incarnation)
        assert {rank: proc.pid for rank, proc in found.items()} == {0: process.pid}
        await site.cluster.stop("job", incarnation, 0.0)


@with_site
async def test_a_shell_with_a_pipe_or_a_helper_stays_the_rank(site: Site) -> None:
    program = site.root / "train.py"
    program.write_text(textwrap.dedent(CATCHES))
    script = f"export MASTER_PORT=29500; sleep 600 & {sys.executable} -u {program} | cat; true"
    for incarnation, (nproc, env) in enumerate([(None, {"SLURM_PROCID": "0"}), (2, {})], 1):
        ranks = await site.start(("sh", "-c", script), incarnation=incarnation, nproc=nproc, **env)
        for rank in ranks:
            await site.logged("ready", incarnation=incarnation, rank=rank.rank)
        found = site.cluster.find_ranks("job", incarnation)
        assert {rank: proc.pid for rank, proc in found.items()} == {rank.rank: rank.pid for rank in ranks}
        await site.cluster.stop("job", incarnation, 0.0)


@with_site
async def test_a_rank_that_is_a_shell_with_a_helper_is_not_lost_below_a_launcher(site: Site) -> None:
    shells = LAUNCHER.replace(
        "[sys.executable, '-I', '-S', '-u', '-c', worker]",
        "['sh', '-c', 'sleep 600 & ' + sys.executable + ' -I -S -u -c \"$0\"; true', worker]",
    )
    await site.start(named(site, "torchrun", shells), nproc=None)
    await eventually(lambda: site.log().count("ready") == 2)
    assert sorted(site.cluster.find_ranks("job", 1)) == [0, 1]


@with_site
async def test_a_launcher_of_one_below_another_program_is_found(site: Site) -> None:
    one = named(site, "torchrun", LAUNCHER.replace("range(2)", "range(1)"))
    starts = f"import subprocess; subprocess.run([{one[0]!r}, '-W', 'ignore', {one[2]!r}])"
    await site.start(python(starts), nproc=None)
    await site.logged("ready")
    assert (await site.cluster.signal_ranks("job", 1, [0], "SIGUSR1")).sent == (0,)


@with_site
async def test_the_one_process_of_a_launcher_that_gives_no_numbers_is_the_rank(site: Site) -> None:
    single = LAUNCHER.replace("range(2)", "range(1)").replace(", RANK=str(rank), LOCAL_RANK=str(rank)", "")
    (launcher,) = await site.start(named(site, "accelerate", single), nproc=None)
    await site.logged("ready")
    (rank,) = site.cluster.find_ranks("job", 1).values()
    assert rank.pid != launcher.pid
    assert (await site.cluster.signal_ranks("job", 1, [0], "SIGUSR1")).sent == (0,)


@with_site
async def test_below_srun_whose_tasks_run_elsewhere_the_signal_goes_to_srun_and_not_to_its_only_child(
    site: Site,
) -> None:
    (rank,) = await site.start(srun(site, WITH_A_CHILD))
    await site.logged("ready")
    assert (await site.cluster.signal_ranks("job", 1, [0], "SIGUSR1")).sent == (0,)
    await site.logged(f"saved by {rank.pid}")


@with_site
async def test_the_tasks_that_slurm_started_on_this_machine_are_the_ranks_of_srun(site: Site) -> None:
    # As in a batch script, whose number is in the environment of all that it starts.
    batch = {"SLURM_PROCID": "0", "SLURM_TASK_PID": "1"}
    (launcher,) = await site.start(srun(site, OF_SLURM.format(nodes=1)), nproc=None, **batch)
    await eventually(lambda: site.log().count("ready") == 4)
    found = site.cluster.find_ranks("job", 1)
    assert sorted(found) == [0, 1]
    assert launcher.pid not in {proc.pid for proc in found.values()}
    assert (await site.cluster.signal_ranks("job", 1, [0, 1], "SIGUSR1")).sent == (0, 1)
    await eventually(
        lambda: {f"saved by {proc.pid}" for proc in found.values()} <= set(site.log().splitlines())
    )
    assert site.log().count("saved by") == 2
    os.kill(found[1].pid, signal.SIGSTOP)
    texts = await site.cluster.stacks("job", 1, [0])
    assert [f"rank {rank}: pid {found[rank].pid}" in text for rank, text in enumerate(texts)] == [True, True]
    assert "(T" in texts[1]
    os.kill(found[0].pid, signal.SIGKILL)
    await eventually(lambda: sorted(site.cluster.find_ranks("job", 1)) == [1])


@with_site
async def test_where_tasks_of_srun_run_on_other_machines_too_none_are_looked_at_here(site: Site) -> None:
    (launcher,) = await site.start(srun(site, OF_SLURM.format(nodes=2)), nproc=None)
    await eventually(lambda: site.log().count("ready") == 4)
    assert [proc.pid for proc in site.cluster.find_ranks("job", 1).values()] == [launcher.pid]


@with_site
async def test_of_two_sruns_in_one_script_it_is_not_known_whose_the_tasks_are(site: Site) -> None:
    queued = srun(site, "import signal; print('queued'); signal.pause()")
    runs = srun(site, OF_SLURM.format(nodes=1))
    await site.start(("sh", "-c", f"{shlex.join(runs)} & {shlex.join(queued)} & wait"), nproc=None)
    await site.logged("queued")
    await eventually(lambda: site.log().count("ready") == 4)
    assert set(site.cluster.find_ranks("job", 1)) == {0}


@with_site
async def test_a_helper_that_inherits_the_variables_of_a_plain_process_is_no_rank(site: Site) -> None:
    code = "import os, time; os.fork(); print('ready'); time.sleep(600)"
    (process,) = await site.start(python(code), nproc=None, RANK="3", LOCAL_RANK="0")
    await eventually(lambda: site.log().count("ready") == 2)
    assert {rank: proc.pid for rank, proc in site.cluster.find_ranks("job", 1).items()} == {3: process.pid}


@with_site
async def test_the_program_under_a_shell_is_the_rank(site: Site) -> None:
    program = site.root / "train.py"
    program.write_text(textwrap.dedent(CATCHES))
    (shell,) = await site.start(("sh", "-c", f"{sys.executable} -u {program}; echo after"))
    await site.logged("ready")
    assert (await site.cluster.signal_ranks("job", 1, [0], "SIGUSR1")).sent == (0,)
    assert f"saved by {shell.pid}" not in await site.logged("saved by")


@with_site
async def test_io_and_cpu_of_helpers_count_for_their_rank(site: Site) -> None:
    code = """
        import os, time
        if os.fork() == 0:
            with open('/dev/zero', 'rb') as zeros:
                for _ in range(64):
                    zeros.read(1 << 20)
            print('read')
            time.sleep(600)
        time.sleep(600)
    """
    await site.start(python(code), nproc=2)
    for rank in (0, 1):
        await site.logged("read", rank=rank)
    for use in site.cluster.use("job", 1).values():
        assert use.processes == 2
        assert use.io_bytes >= 64 << 20


@with_site
async def test_stacks_name_the_function_also_of_a_stopped_rank(site: Site) -> None:
    code = """
        import time
        def waits_for_the_moon():
            print('ready')
            time.sleep(600)
        waits_for_the_moon()
    """
    ranks = await site.start(python(code), nproc=2)
    for rank in (0, 1):
        await site.logged("ready", rank=rank)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    running, stopped, absent = await site.cluster.stacks("job", 1, [0, 1, 2])
    assert running.startswith("rank 0: ")
    assert "waits_for_the_moon" in running
    assert "waits_for_the_moon" in stopped
    assert f"pid {ranks[1].pid} (T" in stopped
    assert absent == "rank 2: gone"


@with_site
async def test_where_a_launcher_stands_below_which_no_rank_is_seen_says_nothing_of_its_ranks(
    site: Site,
) -> None:
    (rank,) = await site.start(srun(site, "import signal; print('ready'); signal.pause()"))
    await site.logged("ready")
    looks = Looks()
    for at_s in (10.0, 20.0, 30.0):
        (text,) = await site.cluster.stacks("job", 1, [0])
        assert f"pid {rank.pid} (S" in text
        looks.fold([text], at_s, 0.0, ranks=1)
        assert (looks.still_s, looks.doubt) == (0.0, "only 0 of 1 ranks could be looked at")


@with_site
async def test_where_there_is_no_python_stack_the_reason_is_given(site: Site) -> None:
    (rank,) = await site.start(("sleep", "600"))
    (text,) = await site.cluster.stacks("job", 1, [0])
    assert text.startswith(f"rank 0: pid {rank.pid} (S")
    assert "no Python stack: " in text
