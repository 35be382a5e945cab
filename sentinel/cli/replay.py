"""`sentinel replay LOG…`: what Sentinel would have seen in old logs, and what it would have decided.
`sentinel replay --kernel FILE…`: the faults that a saved kernel log names.
`sentinel replay --flight-recorder DIR`: for whom ranks waited, from what torch's flight recorders wrote.
`sentinel replay --fleet FILE…`: what the controller of a cluster decided, from its recording.

Nothing is touched and no state is written. Exit codes: 0 replayed; 1 a log cannot be read or tells nothing;
64 the command line is wrong; 78 the policy, the settings or a rule file is.
"""

import argparse
import re
import sys
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from sentinel.cli.options import add_settings

if TYPE_CHECKING:
    from sentinel.core.reports import RankExit
    from sentinel.replay.read import OldLog

USAGE, CONFIG = 64, 78


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "logs",
        nargs="*",
        metavar="LOG",
        help="one rank each, in order or as their names tell; one alone may hold the prefixed lines of "
        "several ranks; - is standard input; .gz is read too",
    )
    parser.add_argument(
        "-r", "--rank", action="append", default=[], metavar="N=FILE", help="the log of rank N"
    )
    parser.add_argument("--policy", metavar="FILE", help="a JobPolicy (YAML) to decide by")
    parser.add_argument(
        "--kernel",
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="instead of a job's logs: name the faults in a saved kernel log (dmesg, syslog, journalctl); several "
        "are one log, the oldest first, or in the order of their rotation (kern.log kern.log.1 kern.log.2.gz); - is "
        "standard input; .gz is read too",
    )
    parser.add_argument(
        "--flight-recorder",
        metavar="DIR",
        help="what flight recorders of torch.distributed wrote when a collective timed out (TORCH_FR_DUMP_TEMP_FILE): "
        "which rank is missing in which operation; with the job's logs, to decide by both",
    )
    parser.add_argument(
        "--fleet",
        action="extend",
        nargs="+",
        default=[],
        metavar="FILE",
        help="instead of a job's logs: recordings of a cluster's controller (fleet.N.jsonl, or the folder of them); "
        "with --settings, what those settings would have decided",
    )
    add_settings(parser)
    parser.add_argument(
        "--exit-code",
        action="append",
        default=[],
        metavar="[RANK=]N",
        help="how the job, or one rank, ended; without it only the log can tell",
    )
    parser.add_argument(
        "--signal", action="append", default=[], metavar="[RANK=]SIGNAL", help="what killed it: 9 or SIGKILL"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="text for people, json for programs"
    )


def main(args: argparse.Namespace) -> int:
    if args.kernel:
        from sentinel.replay.kernel import main as replay_kernel

        return replay_kernel(args)
    if args.fleet:
        from sentinel.cli.replay_fleet import main as replay_fleet

        return replay_fleet(args)
    from sentinel.config.client import ConfigProblem, load_in_child
    from sentinel.console.tables import complain, put, put_document
    from sentinel.logs.ruleset import load_ruleset
    from sentinel.replay.exits import EXIT_RULES
    from sentinel.replay.job import Replay
    from sentinel.replay.read import LogError, OldLogs
    from sentinel.rules.failures import failure_classes
    from sentinel.rules.tables import RuleError

    try:
        exits = _exits(args.exit_code, args.signal)
        named = [_named(text) for text in args.rank]
        if not args.logs and not named and not args.flight_recorder:
            raise ValueError("no log: sentinel replay [options] LOG…")
        if args.logs.count("-") + sum(path == "-" for _, path in named) > 1:
            raise ValueError("standard input (-) can be read only once")
    except ValueError as error:
        complain(str(error))
        return USAGE
    if not args.logs and not named:
        from sentinel.replay.records import show

        return show(args.flight_recorder, args.output)
    try:
        asked, settings = load_in_child(args.policy, args.settings)
        ruleset = load_ruleset(
            (*asked.log_rules, *EXIT_RULES), settings.rules_dir, None, asked.timing_formats
        )
    except ConfigProblem as problem:
        print(problem.text, file=sys.stderr)
        return CONFIG
    except RuleError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return CONFIG
    try:
        began_s = time.monotonic()
        opened, notes = _open(args.logs, named)
        logs = OldLogs(opened, ruleset)
        size = 1 if len(opened) == 1 else max(log.rank for log in opened) + 1
        replay = Replay("replay", asked, failure_classes(), size, logs.start_s)
        for told in logs.told():
            replay.take(told)
        if args.flight_recorder:
            from sentinel.replay.records import records_in

            try:
                records = records_in(args.flight_recorder)
            except OSError as error:
                raise LogError(f"{args.flight_recorder}: {error.strerror}") from None
            replay.picture.stuck = records.stuck
            notes += records.notes
        source = replay.finish(exits)
    except LogError as error:
        for line in str(error).splitlines():
            complain(line)
        return 1
    from sentinel.replay.show import as_text, result_of

    result = result_of(replay, logs, source, asked, notes)
    if args.output == "json":
        put_document(result)
    else:
        put(as_text(result))
    took_s = time.monotonic() - began_s
    read_bytes = sum(log.read_bytes for log in opened)
    print(
        f"{read_bytes / 1e6:.1f} MB in {took_s:.2f} s: {read_bytes / 1e6 / max(took_s, 1e-9):.1f} MB/s",
        file=sys.stderr,
    )
    if not result.iterations and not result.rules and not result.story:
        complain(
            "no iteration and no known line in what was read: is the format among those of docs/timing.md?"
        )
        return 1
    return 0


def _named(text: str) -> tuple[int, str]:
    number, equals, path = text.partition("=")
    if not equals or not number.isdigit() or not path or int(number) >= 4096:
        raise ValueError(f"--rank {text}: expected N=FILE")
    return int(number), path


def _exits(codes: list[str], signals: list[str]) -> "dict[int | None, RankExit]":
    """Rank (None: all that are not named) → how it ended. Raises ValueError."""
    import signal

    from sentinel.core.reports import RankExit

    found: dict[int | None, RankExit] = {}
    for option, texts in (("--exit-code", codes), ("--signal", signals)):
        for text in texts:
            before, _, value = text.rpartition("=")
            if before and not before.isdigit():
                raise ValueError(f"{option} {text}: expected [RANK=]NUMBER")
            rank = int(before) if before else None
            if rank in found:
                raise ValueError(f"{option} {text}: a rank ends only once")
            if option == "--exit-code":
                if not re.fullmatch(r"\d{1,3}", value) or int(value) > 255:
                    raise ValueError(f"{option} {text}: expected 0 to 255")
                found[rank] = RankExit(rank=rank or 0, incarnation=1, at_s=0.0, code=int(value))
                continue
            name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
            number = int(value) if value.isdigit() else getattr(signal, name, None)
            if not isinstance(number, int) or not 1 <= number <= 64:
                raise ValueError(f"{option} {text}: no such signal")
            found[rank] = RankExit(rank=rank or 0, incarnation=1, at_s=0.0, signal=int(number))
    return found


def _open(paths: list[str], named: list[tuple[int, str]]) -> "tuple[list[OldLog], list[str]]":
    """The logs with their ranks, and what there is to say about them. Raises LogError that names every bad one."""
    from sentinel.replay.read import LogError, OldLog

    logs: list[OldLog] = []
    problems: list[str] = []
    notes: list[str] = []
    for rank, path in [*named, *((None, path) for path in paths)]:
        try:
            log = OldLog(path)
        except LogError as error:
            problems.append(str(error))
            continue
        log.rank = -1 if rank is None else rank
        logs.append(log)
    empty = [log for log in logs if log.empty]
    if empty and len(empty) == len(logs):
        problems += [f"{log.path}: empty" for log in empty]
    if problems:
        raise LogError("\n".join(problems))
    notes += [f"{log.path}: empty" for log in empty]
    _number([log for log in logs if log.rank < 0], {log.rank for log in logs if log.rank >= 0}, notes)
    if len(logs) == 1:
        logs[0].rank = 0
    else:
        missing = sorted(set(range(max(log.rank for log in logs) + 1)) - {log.rank for log in logs})
        if missing:
            notes.append(f"no log of rank {', '.join(map(str, missing[:20]))}")
    return logs, notes


def _number(logs: "Sequence[OldLog]", taken: Collection[int], notes: list[str]) -> None:
    """Ranks by name where every name tells another one, else in the order given."""
    from sentinel.replay.rank_names import one_each, rank_of_name, without_gaps

    paths = [log.path for log in logs]
    for bare in (False, True):
        told = [rank for path in paths if (rank := rank_of_name(path, bare=bare)) is not None]
        known = [*taken, *told]
        # Bare numbers may be those of runs, of Slurm's jobs or of nodes.
        if len(told) < len(logs) or len(known) < 2 or (bare and not without_gaps(known)):
            continue
        if one_each(told, paths) and not set(taken) & set(told):
            for log, rank in zip(logs, told, strict=True):
                log.rank = rank
            return
    free = iter(n for n in range(len(logs) + len(taken) + 1) if n not in taken)
    for log in logs:
        log.rank = next(free)
    if len(logs) > 1:
        notes.append("ranks are numbered in the order in which the logs were given")
