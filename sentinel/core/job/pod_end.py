"""Has the rank in a pod ended, and how: from the pod as plain JSON. Pure.

A rank has ended when its container has, whatever else in the pod still runs. Where it was told to end from outside (it
was preempted, evicted, deleted) that explains the end, and exit code 0 is no success: a program that saves on SIGTERM
has not finished. What a pod does not tell stays unknown.

Reasons and messages are those of Kubernetes 1.34 (pkg/kubelet, pkg/scheduler, pkg/controller, pkg/registry/core/pod)
and of containerd. tests/core/pods has what real ones printed.
"""

from collections.abc import Sequence

from msgspec import Struct

from sentinel.core.job.paths import Json, number, read, rows, table, text, wall_s
from sentinel.core.job.pod_told import Told, told
from sentinel.core.job.pod_words import words
from sentinel.core.job.state import ENDED_PHASES, main_container
from sentinel.core.reports import RankExit, signal_of

# Of a container whose end nobody saw: what the kubelet, and containerd after a restart (client/task.go), put there.
_UNSEEN = {"ContainerStatusUnknown": 137, "Unknown": 255}
_NOT_STARTED = ("StartError", "ContainerCannotRun")
_NO_COMMAND = ("no such file or directory", "not found", "permission denied", "exec format error")


class PodEnd(Struct, frozen=True, kw_only=True):
    """How one start of a rank's container ended. Neither code nor signal: not known."""

    pod: str  # namespace/name
    node: str
    container: str  # the one that ended: an init container where the rank's own never ran
    start: int  # of the container in its pod: 0 is the first
    code: int | None = None  # as the runtime reports it
    signal: int | None = None
    oom_killed: bool = False
    failure: str = (
        ""  # class of rules/failures.toml, which says whose budget pays; "": its exit status says it all
    )
    told_wall_s: float | None = None  # when it was told to end from outside, where that is known
    finished_wall_s: float | None = None
    comes_back: bool = False  # the kubelet starts the container again in this pod
    sentence: str = ""  # could stand in a mail


def end(pod: Json, container: str = "", *, gone: bool = False, events: Sequence[Json] = ()) -> PodEnd | None:
    """How the newest start of the rank's container ended. None: it has not started, or it runs, or how and whether is
    not known (its node may be silent).

    `container`: else the one that trains. `gone`: the API server has the pod no more, and `pod` is what it was last.
    `events` of the pod tell more, where there are some: which pod took its place, a probe that failed.
    """
    name = container or text(main_container(pod), "name")
    status = _status(pod, "containerStatuses", name)
    last = _terminated(status)
    over = text(pod, "status.phase") in ENDED_PHASES
    if last is None and not gone and not over:
        return None
    outside = told(pod, events)
    if last is None and not over and outside is None:
        outside = Told("pod-deleted", "deleted", None)  # at once, by force
    if last is None and (failed := _failed_init(pod)) is not None:
        return _ended(pod, text(failed, "name"), failed, _terminated(failed), outside, events, init=True)
    if last is None and text(pod, "status.phase") == "Succeeded":
        last = {"exitCode": 0}  # the phase says that of every container
    return _ended(pod, name, status, last, outside, events)


def restarted(pod: Json, known: int, container: str = "") -> PodEnd | None:
    """How the start before the present one ended, of a container that the kubelet started again in its pod since start
    number `known`. Of several starts between only the last is known."""
    name = container or text(main_container(pod), "name")
    status = _status(pod, "containerStatuses", name)
    count = number(status, "restartCount") or 0
    if count <= known or read(status, "state.running") is None:
        return None  # else `end` tells of it
    # Where the kubelet has forgotten it, as it may, it ended all the same.
    return _ended(pod, name, status, table(status, "lastState.terminated"), None, (), start=count - 1)


def rank_exit(
    ended: PodEnd,
    *,
    rank: int,
    incarnation: int,
    at_s: float,
    now_wall_s: float | None = None,
    told_s: float | None = None,
    ours: bool = False,
) -> RankExit:
    """What the controller folds. `at_s`, `now_wall_s`: when this was seen, by both clocks. `told_s`: when it was first
    seen that the pod is to end, where somebody watched. `ours`: by Sentinel's own stop.

    Of several ends that one look shows the times of the pods' own clocks tell which came first.
    """
    told_wall_s = ended.finished_wall_s if ended.told_wall_s is None else ended.told_wall_s
    if told_s is None:
        told_s = _mono_s(told_wall_s, at_s, now_wall_s)
    return RankExit(
        rank=rank,
        incarnation=incarnation,
        at_s=at_s,
        code=None if ended.signal is not None else ended.code,
        signal=ended.signal,
        oom_killed=ended.oom_killed,
        stopped_by_us=ours,
        failure=ended.failure,
        told_s=told_s if ended.failure else None,
        ended_s=_mono_s(ended.finished_wall_s, at_s, now_wall_s),
        evidence=ended.sentence,
    )


def _mono_s(wall_s: float | None, at_s: float, now_wall_s: float | None) -> float | None:
    return None if wall_s is None or now_wall_s is None else at_s - max(0.0, now_wall_s - wall_s)


# ---------------------------------------------------------------- what its container says


def _status(pod: Json, kind: str, name: str) -> Json:
    return next((one for one in rows(pod, f"status.{kind}") if one.get("name") == name), {})


def _terminated(status: Json) -> Json | None:
    """The end of the newest start: while the kubelet waits to start it again that stands in the last state."""
    if isinstance(now := read(status, "state.terminated"), dict):
        return now
    last = read(status, "lastState.terminated")
    return last if isinstance(last, dict) and read(status, "state.running") is None else None


def _failed_init(pod: Json) -> Json | None:
    """The init container by which a pod failed whose others never ran."""
    if text(pod, "status.phase") != "Failed":
        return None
    for status in rows(pod, "status.initContainerStatuses"):
        last = _terminated(status)
        if last is not None and last.get("exitCode") != 0:
            return status
    return None


def _ended(
    pod: Json,
    name: str,
    status: Json,
    last: Json | None,
    outside: Told | None,
    events: Sequence[Json],
    start: int | None = None,
    init: bool = False,
) -> PodEnd:
    reason, message = text(last, "reason"), text(last, "message").strip()
    code, finished = number(last, "exitCode"), wall_s(last, "finishedAt")
    if code is not None and _UNSEEN.get(reason) == code:
        code = None
    if outside is not None and outside.after(finished):
        outside = None  # it had ended by itself before
    signal = signal_of(code)
    failure, oom_killed = "", False
    if outside is not None:
        failure = outside.failure
    elif code != 0 and (reason == "OOMKilled" or "OOM-killed" in message):
        oom_killed = True
    else:
        failure = _own_failure(reason, message, code, last, signal, events) or ("init-failed" if init else "")
    if last is None and not (read(status, "state.running") or read(status, "lastState.terminated")):
        how = f"container {name} never started"
    else:
        how = _how(f"{'init ' if init else ''}container {name}", reason, message, code, signal, oom_killed)
    when = f" at {text(last, 'finishedAt')}" if finished is not None else ""
    place = f"{text(pod, 'metadata.namespace')}/{text(pod, 'metadata.name')}"
    node = text(pod, "spec.nodeName")
    by = f"it was {outside.how}; " if outside is not None else ""
    return PodEnd(
        pod=place,
        node=node,
        container=name,
        start=start if start is not None else number(status, "restartCount") or 0,
        code=code,
        signal=signal,
        oom_killed=oom_killed,
        failure=failure,
        told_wall_s=outside.wall_s if outside is not None and outside.exact else None,
        finished_wall_s=finished,
        comes_back=comes_back(pod, name, code),
        sentence=f"Pod {place}{f' on node {node}' if node else ''}: {by}{how}{when}",
    )


def _own_failure(
    reason: str,
    message: str,
    code: int | None,
    last: Json | None,
    signal: int | None,
    events: Sequence[Json],
) -> str:
    """The class of an end that nobody outside ordered, where its exit status does not say it all."""
    if reason in _NOT_STARTED:
        return "not-found" if any(words in message for words in _NO_COMMAND) else "container-start"
    if last is not None and code is None:
        return "container-lost"
    probed = any("failed liveness probe" in text(e, "message") for e in events)
    probed |= any(text(e, "message").startswith("Startup probe failed") for e in events)
    return "probe-failed" if probed and signal in (2, 9, 15) else ""


def _how(name: str, reason: str, message: str, code: int | None, signal: int | None, oom_killed: bool) -> str:
    said = f" ({words(message)})" if message else ""
    if reason in _NOT_STARTED:
        return f"{name} could not be started{said}"
    if code is None:
        return f"how {name} ended is not known{said}"
    if oom_killed:
        return f"{name} was OOM killed (exit code {code})"
    if signal is not None:
        return f"{name} was killed by signal {signal} (exit code {code})"
    return f"{name} ended with exit code {code}"


def comes_back(pod: Json, name: str, code: int | None) -> bool:
    """Does the kubelet start this container again, after this exit code?"""
    if text(pod, "status.phase") in ENDED_PHASES or text(pod, "metadata.deletionTimestamp"):
        return False
    made = [*rows(pod, "spec.containers"), *rows(pod, "spec.initContainers")]
    where = next((c for c in made if c.get("name") == name), {})
    policy = text(where, "restartPolicy") or text(pod, "spec.restartPolicy") or "Always"
    return policy == "Always" or (policy == "OnFailure" and code != 0)
