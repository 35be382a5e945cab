"""What flight recorders of torch wrote is read as data, and tells who is missing.

The files of `records/` were written by torch 2.15 (gloo, four ranks) with tests/trainers/programs/stuck.py: `absent`
(rank 2 does not come), `different` (rank 3 evaluates), `silent` (rank 1 writes none), `well`. Gloo records no sends.
"""

import asyncio
import json
import os
import pickle
from pathlib import Path

import pytest

from sentinel.cluster.local.flight import in_folder, prune, read, stuck_in, wanted
from sentinel.cluster.local.flight_dumps import DumpError, is_dump, rank_of_dump, read_dump, read_dumps
from sentinel.core.stacks.flight_record import Kind, Stuck, stuck

RECORDS = Path(__file__).parent / "records"


def files(kind: str) -> list[str]:
    return sorted(map(str, (RECORDS / kind).iterdir()))


def told(kind: str) -> Stuck:
    read = read_dumps(files(kind))
    assert not read.notes
    found = stuck(read.dumps)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("kind", "is_", "rank", "says"),
    [
        ("absent", Kind.ABSENT, 2, "Rank 2 did not take part in all_reduce 4 of group default_pg"),
        ("different", Kind.DIFFERENT, 3, "rank 3 in broadcast of Float [8] at evaluate (programs/stuck.py:"),
        ("silent", Kind.SILENT, 1, "There is no record of rank 1"),
    ],
)
def test_real_records_tell_who_is_missing(kind: str, is_: Kind, rank: int | None, says: str) -> None:
    found = told(kind)
    assert (found.kind, found.rank) == (is_, rank)
    assert says in found.sentence


def test_real_records_tell_where_the_program_called_it() -> None:
    assert "in which 3 ranks wait, called at step (programs/stuck.py:" in told("absent").sentence


def test_records_of_a_job_that_is_well_tell_of_no_wait() -> None:
    read = read_dumps(files("well"))
    assert len(read.dumps) == 4
    assert stuck(read.dumps) is None


def test_json_is_read_as_the_pickle_is() -> None:
    data = Path(files("absent")[0]).read_bytes()
    raw = pickle.loads(data)
    for one in raw["entries"]:
        one.pop("frames")  # the JSON form has none
    as_json = read_dump(json.dumps(raw).encode(), 0)
    plain = read_dump(pickle.dumps(raw), 0)
    assert as_json == plain
    assert [one.op for one in as_json.entries][-1] == "all_reduce"
    assert is_dump(data)
    assert is_dump(json.dumps(raw).encode())


# ---------------------------------------------------------------- what cannot be read


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("made-by-a-pickle",)


def test_no_code_of_a_file_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DumpError, match=r"it asks for posix\.mkdir, which no flight recorder writes"):
        read_dump(pickle.dumps({"version": "2.10", "entries": _Runs()}), 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x02rubbish",
        b"{",
        b"[]",
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": 3}),
        pickle.dumps({"entries": [{"collective_seq_id": "x"}]}),
        pickle.dumps(
            {"entries": [{"record_id": 0, "process_group": 3, "input_sizes": [[[]]], "frames": [1]}]}
        )[:-9],
    ],
)
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(DumpError):
        read_dump(data, 0)


def test_each_cut_of_a_real_record_is_refused_or_read() -> None:
    data = Path(files("absent")[0]).read_bytes()
    for end in range(0, len(data) - 1, 97):
        with pytest.raises(DumpError):
            read_dump(data[:end], 0)


def nccl(*entries: dict[str, object], status: dict[str, object] | None = None) -> bytes:
    """As ProcessGroupNCCL of torch 2.15 writes a record; of groups 0 (ranks 4 and 5) and 5 (4 and 6)."""
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": "[4, 5]"},
        "5": {"name": "5", "desc": "DP", "ranks": "[4, 6]"},
    }
    common = {
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 0,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "state": "scheduled",
        "retired": False,
        "input_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "time_created_ns": 10**18,
    }
    told = [common | {"record_id": number} | entry for number, entry in enumerate(entries)]
    return pickle.dumps({"version": "2.10", "pg_config": config, "pg_status": status or {}, "entries": told})


def reduces(seq: int, **more: object) -> dict[str, object]:
    return {"profiling_name": "nccl:all_reduce", "collective_seq_id": seq} | more


def test_what_timing_tells_and_how_far_a_group_came_is_read() -> None:
    other = {"pg_id": 3, "process_group": ("5", "DP")}
    dump = read_dump(
        nccl(
            reduces(7, record_id=5000, state="started", retired=True),
            reduces(2, state="completed", **other),
            status={"0": {"last_enqueued_collective": 9}, "3": {"last_enqueued_collective": "4"}},
        ),
        4,
    )
    assert [(one.seq, one.done, one.started, one.group.ranks) for one in dump.entries] == [
        (7, False, True, (4, 5)),
        (2, True, False, (4, 6)),
    ]
    assert {group.name: seq for group, seq in dump.last.items()} == {"0": 9, "5": 4}
    assert not dump.whole
    assert read_dump(nccl(reduces(1)), 4).whole


def test_the_same_numbers_in_another_shape_are_the_same_to_nccl() -> None:
    one, other = (read_dump(nccl(reduces(1, input_sizes=[shape])), 4) for shape in ([4, 8], [32]))
    assert one.entries[0].amount == other.entries[0].amount
    assert one.entries[0].shapes != other.entries[0].shapes


def test_collectives_of_one_launch_are_one() -> None:
    group = {"pg_id": 3, "process_group": ("5", "DP")}
    dump = read_dump(
        nccl(
            reduces(1),
            reduces(1, **group),
            reduces(1, **group),
            reduces(1, profiling_name="nccl:coalesced", state="completed", **group),
        ),
        4,
    )
    assert [(one.group.name, one.op, one.done) for one in dump.entries] == [
        ("0", "all_reduce", False),
        ("5", "all_reduce coalesced", True),
    ]


def test_records_of_an_old_torch_are_refused_with_the_reason() -> None:
    with pytest.raises(DumpError, match=r"of a torch before 2\.4"):
        read_dump(pickle.dumps({"entries": [{"seq_id": 1, "profiling_name": "nccl:all_reduce"}]}), 0)


def test_odd_fields_lose_the_field_and_not_the_record() -> None:
    entries = [
        {
            "record_id": 0,
            "collective_seq_id": 1,
            "profiling_name": "nccl:all_reduce\ud800",
            "state": "scheduled",
        },
        {"collective_seq_id": 2, "profiling_name": "", "frames": [1, {}], "input_sizes": 7},
    ]
    odd = {"version": 2, "pg_config": [], "pg_status": [], "entries": entries}
    read = read_dump(pickle.dumps(odd), 0)
    assert [one.op for one in read.entries] == ["all_reduce?", ""]


def test_a_record_that_cannot_be_read_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    for path in files("absent"):
        (tmp_path / Path(path).name).write_bytes(Path(path).read_bytes())
    (tmp_path / "rank-0").write_bytes(b"\x80\x02pg_config")
    (tmp_path / "notes").write_bytes(b"x")
    read = read_dumps(sorted(map(str, tmp_path.iterdir())))
    assert [dump.rank for dump in read.dumps] == [1, 2, 3]
    assert [note.partition(": ")[0].rpartition("/")[2] for note in read.notes] == ["notes", "rank-0"]


def test_a_record_of_another_run_is_left_out(tmp_path: Path) -> None:
    for path in files("absent"):
        (tmp_path / Path(path).name).write_bytes(Path(path).read_bytes())
    old = pickle.loads((tmp_path / "rank-2").read_bytes())
    for one in old["entries"]:
        one["time_created_ns"] -= 5 * 3600 * 10**9
    (tmp_path / "rank-2").write_bytes(pickle.dumps(old))
    read = read_dumps(sorted(map(str, tmp_path.iterdir())))
    assert [dump.rank for dump in read.dumps] == [0, 1, 3]
    assert read.unread == {2}
    assert "rank-2: ends 5 h before the others, as one of another run: left out" in read.notes[0]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("comm_lib_trace_rank_3", 3),
        ("nccl_trace_rank_12", 12),
        ("flight-rank-0", 0),
        ("trace_7.json", 7),
        ("job2_rank5.pkl", 5),
        ("worker-0_trace_3", 3),
        ("trace_rank_4_1764336459", 4),
        ("rank-11.gz", 11),
        ("core", None),
    ],
)
def test_the_name_tells_the_rank(name: str, rank: int | None) -> None:
    assert rank_of_dump(f"/x/rank_9/{name}") == rank


def test_sends_of_one_launch_have_its_state_whatever_stands_between_them() -> None:
    """Only the last entry has events to ask; a collective of another thread may be recorded before it."""
    sends = {"is_p2p": True, "p2p_seq_id": 1}
    dump = read_dump(
        nccl(
            sends | {"profiling_name": "nccl:send 0->1"},
            reduces(1),
            sends | {"profiling_name": "nccl:recv 0<-1"},
            sends | {"profiling_name": "nccl:coalesced", "state": "completed"},
        ),
        4,
    )
    assert [(one.op, one.peers, one.done, one.batched) for one in dump.entries] == [
        ("send", (4, 5), True, True),
        ("recv", (5, 4), True, True),
        ("all_reduce", None, False, False),
    ]


# ---------------------------------------------------------------- of a job that runs here


def test_a_job_is_told_where_to_write_unless_it_has_its_own() -> None:
    env = wanted("/logs/flight-rank-", {"PATH": "/bin"})
    assert env == {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/logs/flight-rank-", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    for name in env:
        assert name not in wanted("/logs/flight-rank-", {name: "0"})
    assert wanted("/x", {"TORCH_FR_DUMP_TEMP_FILE": "/y"}) == {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def test_what_ranks_wrote_beside_their_logs_is_read_by_a_child(tmp_path: Path) -> None:
    for path in files("absent"):
        (tmp_path / f"flight-{Path(path).name}").write_bytes(Path(path).read_bytes())
    (tmp_path / "rank-0.log").write_text("step 1\n")
    assert len(in_folder(str(tmp_path))) == 4
    assert asyncio.run(stuck_in(str(tmp_path))) == told("absent")
    (tmp_path / "flight-rank-0").write_bytes(b"\x80\x02")
    found = asyncio.run(stuck_in(str(tmp_path)))
    assert found is not None
    assert found.rank == 2


def test_files_that_break_the_unpickler_break_its_process_alone(tmp_path: Path) -> None:
    """A key that is nested two million times; a memo of 2^30 places."""
    nested = b"\x80\x02}(" + b")" + b"\x85" * 2_000_000 + b"K\x01u."
    memo = b"\x80\x02}r\x00\x00\x00\x40."
    for number, data in enumerate((nested, memo)):
        (tmp_path / f"flight-rank-{number}").write_bytes(data)
        assert asyncio.run(stuck_in(str(tmp_path))) is None
    records = asyncio.run(read([str(tmp_path / "flight-rank-1"), str(tmp_path / "gone-1")]))
    assert (records.files, len(records.notes)) == ([], 2)
    slow = asyncio.run(read([files("absent")[0]], limit_s=0.0))
    assert slow.notes == [f"{RECORDS / 'absent'}: not read within 0 s"]


def test_records_of_the_last_three_starts_are_kept(tmp_path: Path) -> None:
    for start in range(1, 7):
        (tmp_path / str(start)).mkdir()
        for name in ("flight-rank-0", "rank-0.log"):
            (tmp_path / str(start) / name).write_text("x")
    prune(str(tmp_path), 7)
    assert sorted(path.parent.name for path in tmp_path.glob("*/flight-rank-0")) == ["5", "6"]
    assert len([*tmp_path.glob("*/rank-0.log")]) == 6


def test_without_records_nothing_is_told(tmp_path: Path) -> None:
    assert asyncio.run(stuck_in(str(tmp_path))) is None
    assert asyncio.run(stuck_in(str(tmp_path / "gone"))) is None
