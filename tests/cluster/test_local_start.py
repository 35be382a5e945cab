"""Starting ranks: their variables, and each way in which a start is refused."""

import json
import os
import signal
from pathlib import Path

import pytest

from sentinel.cluster.local.order import free_port
from sentinel.cluster.local.processes import scan
from sentinel.core.model import Launch
from sentinel.util.errors import PermanentError, TemporaryError
from tests.cluster.local_jobs import Site, alive, python, with_site
from tests.waits import eventually

SLEEP = ("sleep", "600")
PRINT_ENVIRONMENT = python("import os, json; print(json.dumps(dict(os.environ)))")


def marked(mark: str) -> list[int]:
    """Living processes whose command line has `mark`."""
    found = []
    for pid, proc in scan().items():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in line and not proc.dead and pid != os.getpid():
            found.append(pid)
    return found


@with_site
async def test_ranks_get_the_variables_that_let_them_meet(site: Site) -> None:
    await site.start(PRINT_ENVIRONMENT, nproc=2, EXTRA="given")
    assert (await site.ended(0)).ok
    assert (await site.ended(1)).ok
    first, second = json.loads(site.log(rank=0)), json.loads(site.log(rank=1))
    assert [first[n] for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == [
        "0",
        "0",
        "2",
        "2",
    ]
    assert [second[n] for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == [
        "1",
        "1",
        "2",
        "2",
    ]
    assert first["MASTER_ADDR"] == "127.0.0.1"
    assert first["MASTER_PORT"] == second["MASTER_PORT"]
    assert (first["SENTINEL_JOB"], first["SENTINEL_INCARNATION"]) == ("job", "1")
    assert first["SENTINEL_RUN"] == second["SENTINEL_RUN"] != ""
    assert (first["EXTRA"], first["PYTHONUNBUFFERED"]) == ("given", "1")


@with_site
async def test_a_plain_process_gets_no_rank_variables(site: Site) -> None:
    await site.start(PRINT_ENVIRONMENT, nproc=None)
    assert (await site.ended(0)).ok
    assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & (json.loads(site.log()).keys() - os.environ.keys())


@with_site
async def test_each_incarnation_meets_at_another_port_and_logs_to_other_files(site: Site) -> None:
    ports = []
    for incarnation in (1, 2, 3):
        site.exits.clear()
        await site.start(PRINT_ENVIRONMENT, incarnation)
        assert (await site.ended(0)).incarnation == incarnation
        assert (await site.cluster.stop("job", incarnation, 1.0)).gone
        ports.append(json.loads(site.log(incarnation))["MASTER_PORT"])
    assert ports[0] != ports[1] != ports[2]


def test_a_port_is_never_given_twice_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    picks = iter([20007, 20007, 20008])
    monkeypatch.setattr("random.randrange", lambda low, high: next(picks))
    assert free_port(other_than=20007) == 20008


@with_site
async def test_every_rank_leads_a_session_with_default_signals_and_no_terminal(site: Site) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        ranks = await site.start(SLEEP, nproc=2)
    finally:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    for rank in ranks:
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{rank.pid}/status").read_text().splitlines()
        )
        assert os.getsid(rank.pid) == os.getpgid(rank.pid) == rank.pid
        standard = (1 << 31) - 1  # 32 and 33 are glibc's own and may come ignored from whoever runs the tests
        assert int(status["SigIgn"], 16) & standard == int(status["SigBlk"], 16) == 0
        assert os.readlink(f"/proc/{rank.pid}/fd/0") == "/dev/null"
        assert os.readlink(f"/proc/{rank.pid}/fd/1") == os.readlink(f"/proc/{rank.pid}/fd/2") == rank.log_path
        # A program that is still being loaded has a library or two open.
        fds = f"/proc/{rank.pid}/fd"
        await eventually(
            lambda fds=fds: sorted(os.listdir(fds)) == ["0", "1", "2"], "nothing else is inherited"
        )


@with_site
async def test_a_start_that_is_repeated_finds_the_ranks_started(site: Site) -> None:
    first = await site.start(SLEEP, nproc=2)
    assert await site.start(SLEEP, nproc=2) == first
    again = Site(site.root)
    assert await again.start(SLEEP, nproc=2) == first
    again.cluster.close()


@with_site
async def test_256_ranks_start_and_stop_together(site: Site) -> None:
    ranks = await site.start(SLEEP, nproc=256)
    assert len({rank.pid for rank in ranks}) == 256
    outcome = await site.cluster.stop("job", 1, 10.0)
    assert outcome.gone
    assert sorted(exit.rank for exit in site.exits) == list(range(256))


@pytest.mark.parametrize(
    ("command", "reason", "text"),
    [
        (
            ("no-such-program-here",),
            "CommandNotFound",
            "no such command: 'no-such-program-here' is not in PATH",
        ),
        (("./absent",), "CommandNotFound", "No such file or directory"),
        (("./plain-file",), "CommandNotExecutable", "Permission denied"),
        (
            ("./no-interpreter",),
            "CommandNotFound",
            "the interpreter that its first line names does not exist",
        ),
        (("./no-first-line",), "CommandNotExecutable", "a script needs a first line"),
        (("sh", "-c", "x" * 200_000), "ArgumentsTooLong", "Argument list too long"),
    ],
)
def test_a_command_that_cannot_run_is_refused_with_the_reason(
    tmp_path: Path, command: tuple[str, ...], reason: str, text: str
) -> None:
    (tmp_path / "plain-file").write_text("no program")
    for name, content in (("no-interpreter", "#!/no/such/shell\n"), ("no-first-line", "echo\n")):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)

    @with_site
    async def refused(site: Site) -> None:
        with pytest.raises(PermanentError) as caught:
            await site.start(command, nproc=2)
        assert caught.value.reason == reason
        assert text in str(caught.value)
        assert (await site.cluster.adopt("job")).incarnation == 0
        await site.start(("true",))  # the refusal used up nothing
        assert (await site.ended()).ok

    refused(tmp_path)


@with_site
async def test_a_working_directory_that_vanished_is_named(site: Site) -> None:
    launch = Launch(command=SLEEP, cwd=str(site.root / "gone"), env=dict(os.environ))
    with pytest.raises(PermanentError, match=r"cannot enter the working directory '.*gone'") as caught:
        await site.cluster.start("job", launch, 1, 1, {})
    assert caught.value.reason == "WorkingDirectoryGone"


@with_site
async def test_of_a_start_that_fails_half_way_no_rank_is_left(site: Site) -> None:
    Path(site.cluster.log_path("job", 1, 2)).mkdir(parents=True)  # rank 2 cannot have its log
    with pytest.raises(PermanentError, match=r"cannot write the log '.*rank-2.log': Is a directory"):
        await site.start(("sleep", "600.4242"), nproc=3)
    assert marked("600.4242") == []
    assert site.exits == []


@with_site
async def test_a_folder_that_cannot_take_logs_is_named(site: Site) -> None:
    site.cluster.job_dir("job").mkdir(parents=True)
    (site.cluster.job_dir("job") / "logs").write_text("in the way")
    with pytest.raises(PermanentError, match="cannot write the log"):
        await site.start(SLEEP)


@with_site
async def test_an_environment_of_a_megabyte_and_of_any_bytes_arrives(site: Site) -> None:
    big = {f"BIG_{number}": "x" * 100_000 for number in range(10)}
    code = "import os; print(sum(len(v) for k, v in os.environ.items() if k.startswith('BIG_')), os.environb[b'ODD'])"
    await site.start(python(code), nproc=2, ODD=os.fsdecode(b"a\xff=\n"), **big)
    assert (await site.ended(0)).ok
    assert site.log() == "1000000 b'a\\xff=\\n'\n"


@with_site
async def test_a_start_over_what_is_left_of_the_last_one_waits(site: Site) -> None:
    await site.start(SLEEP)
    with pytest.raises(TemporaryError, match="earlier incarnation still run"):
        await site.start(SLEEP, incarnation=2)


@with_site
async def test_a_name_that_is_no_file_name_is_refused(site: Site) -> None:
    launch = Launch(command=SLEEP, cwd="/", env={})
    with pytest.raises(PermanentError, match="cannot name a job"):
        await site.cluster.start("../job", launch, 1, 1, {})


def test_a_state_folder_with_a_long_path_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)

    @with_site
    async def deep_down(site: Site) -> None:
        (rank,) = await site.start(SLEEP)
        os.kill(rank.pid, signal.SIGKILL)
        assert (await site.ended()).signal == signal.SIGKILL

    deep_down(deep)


@with_site
async def test_the_supervisor_ends_when_nothing_is_left_for_it(site: Site) -> None:
    await site.start(("true",))
    await site.ended()
    pid = site.supervisor_pid()
    await site.cluster.release("job")
    await eventually(lambda: not alive(pid), "the end of the supervisor")
