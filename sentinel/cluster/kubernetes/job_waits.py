"""How long a job's pods are waited for, to end and to run."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from time import monotonic

from msgspec import Struct

from sentinel.core.job import stop as job_stop
from sentinel.core.job.kinds import KeepOff
from sentinel.core.job.paths import Json, read, text
from sentinel.core.job.state import Seen, gating_queue, keeps_off, living, names

WHY_AFTER_S = 10.0  # pods that are not up are asked for the reason
LEAVES_LOOKS, LEAVES_LOOK_S = 50, 0.2  # at a node that is to leave service, until its cordon is seen
GROUP_S = 4.0  # each start waits so for Volcano's scheduler, which turns each second; longer: in a queue
HOPELESS_S = 120.0  # a start that nothing but a person helps is given up
STOP_SLACK_S = 30.0  # beyond the grace, for the kubelet and the API


class Left(Struct):
    """What of a job that was told to stop still lives. `held`: its kind keeps it stopped: nothing may be left."""

    held: bool
    old: set[str]  # uids of the pods that it had
    theirs: Callable[[Seen], bool]  # has somebody else let it run since, who may?
    told_s: dict[str, float] = {}  # by uid, monotonic: since when it is seen that a pod is being ended

    def of(self, seen: Seen) -> list[Json]:
        spared = job_stop.spared(seen)
        there = [pod for pod in living(seen.pods) if text(pod, "metadata.uid") not in spared]
        left = there if self.held else [pod for pod in there if text(pod, "metadata.uid") in self.old]
        for pod in left:
            if read(pod, "metadata.deletionTimestamp") is not None:
                self.told_s.setdefault(text(pod, "metadata.uid"), monotonic())
        return left

    def excuse(self, pods: Sequence[Json], grace_s: float) -> str:
        """Why these, which still live, may be as they should; "": they have outlived the time that they were given."""
        uids = [text(pod, "metadata.uid") for pod in pods]
        if untold := [uid for uid in uids if uid not in self.told_s]:
            return f"{len(untold)} of its pods are not being ended yet: the controller of its kind has not acted."
        if any(monotonic() - self.told_s[uid] < grace_s + STOP_SLACK_S / 2 for uid in uids):
            return "Its last pods have not had their time to end yet."
        return ""


class Lasting:
    """Is something so for long, without a break?"""

    def __init__(self, least_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._least_s, self._clock = least_s, clock
        self._since_s: float | None = None

    def lasts(self, so: bool) -> bool:
        """`so`: is it now?"""
        if not so:
            self._since_s = None
            return False
        now_s = self._clock()
        self._since_s = now_s if self._since_s is None else self._since_s
        return now_s - self._since_s >= self._least_s


class Waited:
    """How long a start waits for its pods already."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.told = ""
        self._clock = clock
        self._asked_s = clock()
        self.hopeless = Lasting(HOPELESS_S, clock)  # so long it is no passing trouble of a registry or a node

    def long_enough(self) -> bool:
        """To ask why, now."""
        now_s = self._clock()
        if now_s - self._asked_s < WHY_AFTER_S:
            return False
        self._asked_s = now_s
        return True


def on_bad_nodes(seen: Seen, excluded: Collection[str]) -> str:
    """Why those that run are not those that were to run: of a kind that nothing holds stopped and nothing keeps off a
    node, some were made again there while it still took pods. "": none was."""
    if seen.row.holds or keeps_off(seen) is not KeepOff.NONE:
        return ""
    bad = {text(pod, "spec.nodeName") for pod in living(seen.pods)}.intersection(excluded)
    return f"Its owner has made pods again on {some(bad)}, from which it was to go." if bad else ""


def started_off(seen: Seen, nodes: Collection[str]) -> bool:
    """Has its operator made its pods again by itself, and has the scheduler given none of these nodes to them?"""
    on = {text(pod, "spec.nodeName") for pod in living(seen.pods)}
    return not seen.row.holds and bool(on) and on.isdisjoint({"", *nodes})


async def cordons(taking: Callable[[], list[str]], leaving: Callable[[str], bool]) -> None:
    """Where all nodes that are `taking` pods are to leave service: until none does, for a moment."""
    for _ in range(LEAVES_LOOKS):
        if not (nodes := taking()) or not all(leaving(node) for node in nodes):
            return
        await asyncio.sleep(LEAVES_LOOK_S)


def nothing_keeps_off(seen: Seen, nodes: Sequence[str]) -> str:
    queued = " in a queue of Kueue" if gating_queue(seen) else ""
    return (
        f"Nothing in a {seen.row.kind}{queued} keeps its pods off {', '.join(nodes[:5])}, which still takes pods: "
        f"it waits until the node is out of service{' or well again' if seen.row.holds else ''}."
    )


def outlived(dead: Sequence[Json], dark: Collection[str]) -> str:
    """What becomes of pods that did not end: of those that run nothing any more, and of those on nodes where nobody
    answers."""
    told = list[str]()
    if dead:
        named = some({text(pod, "spec.nodeName") for pod in dead})
        told.append(
            f"Pods that run nothing any more and do not end are removed by force: {some(names(list(dead)))}. Their "
            f"nodes need a restart: {named}."
        )
    if dark:
        told.append(
            f"Pods on {some(dark)} do not end and nobody answers for them: they may still write. It goes on when "
            "they are gone, or their node was proved dead (`sentinel confirm-dead NODE`)."
        )
    return " ".join(told) or "Its last pods are being removed."


def some(found: Collection[str]) -> str:
    return ", ".join(sorted(found)[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
