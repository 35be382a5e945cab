"""`sentinel logs NAME`: what the ranks of a job wrote, of one incarnation, or followed across them."""

import argparse
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sentinel.console.prefix import Prefixer
from sentinel.console.tables import complain, silence_stdout, unknown_job
from sentinel.settings import Settings

POLL_S = 0.2
STATE_EVERY_S = 1.0  # how often a follower asks the records whether the job has ended
PIECE_BYTES = 1 << 18


class _Refusal(Exception):
    """What was asked for is not there; the message says what is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--incarnation", type=int, metavar="N", help="of this start of the job; default: the newest"
    )
    which.add_argument("--previous", action="store_true", help="of the start before the newest")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on, across restarts, until the job ends"
    )
    parser.add_argument("-n", "--lines", type=int, metavar="LINES", help="only the last LINES of each rank")
    parser.add_argument("--state-dir", metavar="DIR", default="", help="where Sentinel keeps its state")


def main(args: argparse.Namespace) -> int:
    """0: shown; 1: there is no such job, incarnation or rank; 130: ended by Ctrl-C."""
    state_dir = Settings(state_dir=args.state_dir).state_path
    try:
        _show(args, state_dir)
        return 0
    except (_Refusal, OSError) as error:
        if isinstance(error, BrokenPipeError):
            silence_stdout()
            return 0
        complain(str(error))
        return 1
    except KeyboardInterrupt:
        return 130


def incarnations(job_dir: Path) -> list[int]:
    """The starts of a job that left logs, oldest first."""
    try:
        names = os.listdir(job_dir / "logs")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def rank_logs(job_dir: Path, incarnation: int) -> dict[int, Path]:
    """The logs of one incarnation by rank."""
    folder = job_dir / "logs" / str(incarnation)
    found = {}
    for path in folder.glob("rank-*.log"):
        number = path.name.removeprefix("rank-").removesuffix(".log")
        if number.isascii() and number.isdigit():
            found[int(number)] = path
    return dict(sorted(found.items()))


class _Log:
    """One rank's log, read from `offset` on."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._offset = 0

    def skip_to_last(self, lines: int) -> None:
        """Leave out all but the last `lines`; an unfinished line counts as one."""
        end = os.fstat(self._fd).st_size
        if lines <= 0:
            self._offset = end
            return
        at, missing = end, lines
        if end and os.pread(self._fd, 1, end - 1) == b"\n":
            at -= 1  # the newline that ends the last line separates nothing
        while at > 0:
            start = max(0, at - PIECE_BYTES)
            piece = os.pread(self._fd, at - start, start)
            cut = len(piece)
            while (cut := piece.rfind(b"\n", 0, cut)) >= 0:
                missing -= 1
                if missing == 0:
                    self._offset = start + cut + 1
                    return
            at = start

    def pieces(self) -> Iterator[bytes]:
        """What stands behind the offset up to the end of the file as it is now."""
        end = os.fstat(self._fd).st_size
        if end < self._offset:
            self._offset = 0  # truncated: what comes now is new
        while self._offset < end:
            try:
                # Where the job's logs are bounded, what was read long ago is a hole: it holds no text.
                self._offset = os.lseek(self._fd, self._offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    self._offset = end
                    return
                if error.errno != errno.EINVAL:
                    raise
            piece = os.pread(self._fd, min(PIECE_BYTES, end - self._offset), self._offset)
            if not piece:
                return
            self._offset += len(piece)
            yield piece

    def close(self) -> None:
        os.close(self._fd)


class _Shown:
    """The logs of one incarnation that are being shown."""

    def __init__(self, job_dir: Path, incarnation: int, rank: int | None, lines: int | None) -> None:
        self._job_dir = job_dir
        self._incarnation = incarnation
        self._rank = rank
        self._lines = lines
        self._logs: dict[int, _Log] = {}
        self._prefixer: Prefixer | None = None

    def read(self) -> None:
        """Write what is new; ranks that started meanwhile are joined."""
        for rank, path in rank_logs(self._job_dir, self._incarnation).items():
            if rank in self._logs or self._rank not in (None, rank):
                continue
            self._logs[rank] = _Log(path)
            if self._lines is not None:
                self._logs[rank].skip_to_last(self._lines)
        if len(self._logs) > 1 and self._prefixer is None:
            self._prefixer = Prefixer()
        for rank, log in self._logs.items():
            for piece in log.pieces():
                _put(self._prefixer.feed(rank, piece, time.monotonic()) if self._prefixer else piece)
        if self._prefixer:
            _put(self._prefixer.flush(time.monotonic()))
        sys.stdout.buffer.flush()

    def end(self) -> None:
        if self._prefixer:
            _put(self._prefixer.flush(time.monotonic(), end=True))
        sys.stdout.buffer.flush()
        for log in self._logs.values():
            log.close()
        self._logs.clear()


def _show(args: argparse.Namespace, state_dir: Path) -> None:
    job_dir = _job_dir(state_dir, args.name)
    shown_incarnation = _choose(args, job_dir)
    if args.rank is not None and not args.follow:
        known = list(rank_logs(job_dir, shown_incarnation))
        if args.rank not in known:
            ranks = ", ".join(map(str, known)) or "none"
            raise _Refusal(f"no log of rank {args.rank} in incarnation {shown_incarnation}; ranks: {ranks}")
    shown = _Shown(job_dir, shown_incarnation, args.rank, args.lines)
    asked_s = float("-inf")
    try:
        while True:
            newest = max(incarnations(job_dir), default=shown_incarnation)
            ended = False
            if args.follow and time.monotonic() - asked_s >= STATE_EVERY_S:
                asked_s = time.monotonic()
                ended = _has_ended(state_dir, args.name)
            # Read after asking: what was written before the end, or before the next start, is all there.
            shown.read()
            if not args.follow:
                return
            if newest > shown_incarnation:
                shown.end()
                shown_incarnation += 1
                complain(f"incarnation {shown_incarnation} of {args.name}")
                shown = _Shown(job_dir, shown_incarnation, args.rank, None)
            elif ended:
                return
            else:
                time.sleep(POLL_S)
    finally:
        shown.end()


def _job_dir(state_dir: Path, name: str) -> Path:
    jobs_dir = state_dir / "jobs"
    names = os.listdir(jobs_dir) if jobs_dir.is_dir() else []
    known = [name for name in names if not name.startswith(".")]
    if name not in known:
        raise _Refusal(unknown_job(name, known, str(state_dir)))
    return jobs_dir / name


def _choose(args: argparse.Namespace, job_dir: Path) -> int:
    known = incarnations(job_dir)
    if not known:
        if args.follow:
            return 1
        raise _Refusal(f"{args.name} has not started yet: there are no logs")
    if args.previous:
        if len(known) < 2:
            raise _Refusal(f"{args.name} was started once: there is no previous incarnation")
        return known[-2]
    if args.incarnation is None:
        return known[-1]
    if args.incarnation not in known:
        raise _Refusal(f"no logs of incarnation {args.incarnation}; known: {', '.join(map(str, known))}")
    return int(args.incarnation)


def _has_ended(state_dir: Path, name: str) -> bool:
    from sentinel.cluster.local.store import LocalStore
    from sentinel.util.errors import PermanentError

    try:
        store = LocalStore(state_dir / "state.db", read_only=True)
    except PermanentError:
        return False
    try:
        job = store.job(name)
    finally:
        store.close()
    return job is not None and job.state.final


def _put(data: bytes) -> None:
    if data:
        sys.stdout.buffer.write(data)
