"""The clocks of many machines as one: an agent's times are its own CLOCK_BOOTTIME, which says nothing elsewhere. Pure.

What an agent sends arrives later than it was told, never earlier. So the least difference of late between arrival here
and the time in the report is how far the two clocks are apart, to within the fastest journey.
"""

from msgspec import Struct, structs

from sentinel.core.reports import LogMatch, RankExit, RankReport, Report

WINDOW_S = 600.0  # two machines' clocks drift apart by some milliseconds meanwhile


class _Apart(Struct):
    boot_id: str
    since_s: float  # of the newer window, by our clock
    older_s: float  # the least difference in the window before
    newer_s: float


class AgentClocks:
    """By node. A report that is spooled for hours keeps its times: the difference comes from fresh ones."""

    def __init__(self) -> None:
        self._apart: dict[str, _Apart] = {}

    def heard(self, node: str, boot_id: str, told_s: float, now_s: float) -> None:
        """A report that says `told_s` by its own clock has arrived at `now_s` by ours."""
        apart_s = now_s - told_s
        known = self._apart.get(node)
        if known is None or known.boot_id != boot_id:
            self._apart[node] = _Apart(boot_id, now_s, apart_s, apart_s)
            return
        if now_s - known.since_s > WINDOW_S:
            known.since_s, known.older_s, known.newer_s = now_s, known.newer_s, apart_s
        known.newer_s = min(known.newer_s, apart_s)

    def here(self, node: str, boot_id: str) -> float | None:
        """What is added to a time of this node's boot to have it by our clock; None: nothing was heard of it."""
        known = self._apart.get(node)
        return None if known is None or known.boot_id != boot_id else min(known.older_s, known.newer_s)

    def forget(self, node: str) -> None:
        self._apart.pop(node, None)


def moved(report: Report, by_s: float) -> Report:
    """The same with all its monotonic times `by_s` later."""
    return structs.replace(
        report,
        now=structs.replace(report.now, mono_s=report.now.mono_s + by_s),
        ranks=tuple(_rank(one, by_s) for one in report.ranks),
        matches=tuple(_match(one, by_s) for one in report.matches),
        exits=tuple((job, _exit(gone, by_s)) for job, gone in report.exits),
    )


def _rank(one: RankReport, by_s: float) -> RankReport:
    if one.alive_s is not None:
        one = structs.replace(one, alive_s=one.alive_s + by_s)
    if not one.iterations:
        return one
    iterations = [structs.replace(each, at_s=each.at_s + by_s) for each in one.iterations]
    return structs.replace(one, iterations=iterations)


def _match(one: LogMatch, by_s: float) -> LogMatch:
    return structs.replace(one, at_s=one.at_s + by_s)


def _exit(one: RankExit, by_s: float) -> RankExit:
    return structs.replace(one, at_s=one.at_s + by_s)
