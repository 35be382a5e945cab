"""The record of one isolated (or silent) node: a pure state machine.

`step(record, event, now, epoch) -> (record, effects)`; TRANSITIONS is the whole machine (see `machine`). The caller
saves the new record before it performs the effects. What a crash left undone is seen by comparing nodes with records
(marks.py).

    decided, and there is room:    → active → released
    decided, and a brake is full:  → held → active → released
    a person uncordons the node:   → active → overridden
"""

from typing import TypeAlias

from msgspec import structs

from sentinel.core.fleet.events import (
    Acknowledged,
    DoConditions,
    DoEvent,
    DoMark,
    DoRemove,
    DoTell,
    Draining,
    Effect,
    End,
    Event,
    FenceBegun,
    FenceEnded,
    Found,
    HeldBack,
    Isolate,
    Marked,
    Moved,
    Noted,
    Open,
    Reason,
    Remember,
    Removed,
    Said,
    Told,
    Well,
)
from sentinel.core.fleet.model import (
    Brake,
    EndedBy,
    Fence,
    FenceState,
    Mode,
    NodeMail,
    NodeQuarantine,
    State,
    StoryLine,
    Wrote,
)
from sentinel.core.machine import Machine, Table, UnexpectedEvent, lengthened
from sentinel.core.now import Now

__all__ = ["MAX_STORY", "TRANSITIONS", "Result", "step"]

MAX_STORY = 100  # lines: a node that goes on and off for months must not grow its record without end
MAX_LINE = 500  # characters of each
_SETTLING = (Brake.NETWORK_SETTLING, Brake.SETTLING)  # said when it is known what it is

Result: TypeAlias = tuple[NodeQuarantine, tuple[Effect, ...]]


def _told(record: NodeQuarantine, event: Said, now: Now, state: State, **changes: object) -> NodeQuarantine:
    """The record in `state`, with one more line of its story."""
    said = event.sentence if len(event.sentence) <= MAX_LINE else f"{event.sentence[: MAX_LINE - 1]}…"
    line = StoryLine(now.wall_s, state, event.reason.value, said)
    return structs.replace(
        record,
        state=state,
        reason=event.reason.value,
        sentence=event.sentence,
        story=lengthened(record.story, line, MAX_STORY),
        **changes,
    )


def _saying(
    record: NodeQuarantine, event: Said, *, tell: bool = True, warning: bool = True
) -> tuple[Effect, ...]:
    """A node event, and a message. All nodes of one network incident, or of one common cause, share one message."""
    effects: list[Effect] = [
        DoEvent(record.node, record.node_uid, event.reason.value, event.sentence, warning)
    ]
    if tell:
        effects.append(DoTell(_key(record, event), event.sentence, event.reason))
    return tuple(effects)


def _key(record: NodeQuarantine, event: Said) -> str:
    if event.reason is Reason.NETWORK_INCIDENT:
        return f"network-incident/{','.join(sorted({finding.code for finding in record.findings}))}"
    if event.reason is Reason.COMMON_CAUSE:
        return f"common-cause/{record.cause[0]}/{record.since_wall_s // 3600:.0f}"  # another day again
    again = ""
    if isinstance(event, Removed):  # each of them is told
        again = f"/{len(record.removals)}"
    elif isinstance(event, FenceBegun | FenceEnded) and record.fence is not None:
        again = f"/{record.fence.tries}"
    return f"{record.id}/{event.reason.value}{again}"


def _changing(record: NodeQuarantine) -> tuple[Effect, ...]:
    """What may differ on the node now. Nothing is written for what is only observed."""
    if record.mode is Mode.OBSERVE:
        return ()
    return (
        (DoMark(record.node), DoConditions(record.node))
        if record.kind.isolates
        else (DoConditions(record.node),)
    )


# ---------------------------------------------------------------- handlers


def _open(record: None, event: Open, now: Now) -> Result:
    state = State.HELD if event.held_by else State.ACTIVE
    new = NodeQuarantine(
        id=event.id,
        kind=event.kind,
        node=event.node,
        node_uid=event.node_uid,
        pool=event.pool,
        mode=event.mode,
        state=state,
        held_by=event.held_by,
        cause=event.cause,
        severity=event.severity,
        findings=event.findings,
        needs=event.needs,
        running_there=event.running_there,
        since_wall_s=now.wall_s,
        acted_wall_s=0.0 if event.held_by or event.adopted else now.wall_s,
        boot_id=event.boot_id,
        sampled=event.sampled,
        repeats=event.repeats,
        orders=(event.order,) if event.order else (),
        by=event.by,
        pods=event.pods,
        self_fences=event.self_fences,
        drain=event.drain is not None,
        jobs_left=event.drain or (),
    )
    new = _told(new, event, now, state)
    settling = event.held_by in _SETTLING
    return new, (*_changing(new), *(() if settling else _saying(new, event)))


def _held_back(record: NodeQuarantine, event: HeldBack, now: Now) -> Result:
    """Also from active: what was observed is to be enforced now, and there is no room."""
    changes = {"held_by": event.brake, "mode": event.mode, "cause": event.cause or record.cause}
    record = _told(record, event, now, State.HELD, acted_wall_s=0.0, **changes)
    return record, (*_changing(record), *(() if event.brake in _SETTLING else _saying(record, event)))


def _isolate(record: NodeQuarantine, event: Isolate, now: Now) -> Result:
    record = _told(
        record,
        event,
        now,
        State.ACTIVE,
        held_by=Brake.NONE,
        mode=event.mode,
        acted_wall_s=now.wall_s,
        running_there=event.running_there,
    )
    return record, (*_changing(record), *_saying(record, event))


def _found(record: NodeQuarantine, event: Found, now: Now) -> Result:
    record = _told(
        record,
        event,
        now,
        record.state,
        severity=event.severity,
        findings=event.findings,
        needs=event.needs,
        sampled=event.sampled,
        well_from=None,
    )
    return record, (*_changing(record), *_saying(record, event, tell=False))


def _well(record: NodeQuarantine, event: Well, now: Now) -> Result:
    return _told(record, event, now, record.state, well_from=event.since), ()


def _marked(record: NodeQuarantine, event: Marked, now: Now) -> Result:
    return structs.replace(record, wrote=event.wrote), ()


def _moved(record: NodeQuarantine, event: Moved, now: Now) -> Result:
    record = _told(
        record, event, now, record.state, node_uid=event.node_uid, boot_id=event.boot_id, wrote=Wrote()
    )
    return record, (*_changing(record), *_saying(record, event))


def _noted(record: NodeQuarantine, event: Noted, now: Now) -> Result:
    changes: dict[str, object] = {"held_by": event.brake}
    if event.order:
        changes |= {"orders": (*record.orders, event.order), "by": event.by, "confirmed_dead": True}
    record = _told(record, event, now, record.state, **changes)
    return record, (*_changing(record), *_saying(record, event))


def _acknowledged(record: NodeQuarantine, event: Acknowledged, now: Now) -> Result:
    followed = {"acknowledged": True, "orders": (*record.orders, event.order), "by": event.by}
    record = _told(record, event, now, record.state, **followed)
    return record, _saying(record, event, tell=False, warning=False)


def _draining(record: NodeQuarantine, event: Draining, now: Now) -> Result:
    changes: dict[str, object] = {"drain": event.drain, "jobs_left": event.jobs_left}
    if event.order:
        changes |= {"orders": (*record.orders, event.order), "by": event.by}
    record = _told(record, event, now, record.state, **changes)
    return record, _saying(record, event, tell=event.reason is not Reason.JOBS_LEFT, warning=False)


def _removed(record: NodeQuarantine, event: Removed, now: Now) -> Result:
    removal = event.removal
    record = _told(record, event, now, record.state, held_by=Brake.NONE, removals=(*record.removals, removal))
    effects = _saying(record, event)
    if removal.mode is Mode.ENFORCE:
        effects = (DoRemove(record.node, removal.pods, removal.proof), *effects)
    return record, effects


def _fence_begun(record: NodeQuarantine, event: FenceBegun, now: Now) -> Result:
    fence = Fence(tries=event.number, begun_wall_s=now.wall_s, mode=event.mode)
    record = _told(record, event, now, record.state, held_by=Brake.NONE, fence=fence)
    return record, _saying(record, event)


def _fence_ended(record: NodeQuarantine, event: FenceEnded, now: Now) -> Result:
    if record.fence is None:
        raise UnexpectedEvent("FenceEnded of a program that was not called")
    state = FenceState.OFF if event.off else FenceState.FAILED
    record = _told(record, event, now, record.state, fence=structs.replace(record.fence, state=state))
    return record, _saying(record, event, tell=not event.off)  # that its pods are removed says it


def _end(record: NodeQuarantine, event: End, now: Now) -> Result:
    overridden = event.ended_by is EndedBy.UNCORDONED
    # Nothing was said of it; or of all nodes that were held back for it together; or a person has said it of all.
    quiet = record.held_by in (*_SETTLING, Brake.COMMON_CAUSE) or (
        record.state is State.HELD and event.reason is Reason.CODE_IGNORED
    )
    record = _told(
        record,
        event,
        now,
        State.OVERRIDDEN if overridden else State.RELEASED,
        held_by=Brake.NONE,
        ended_wall_s=now.wall_s,
        ended_by=event.ended_by,
        ignored=event.ignored,
        baseline=event.baseline,
        orders=(*record.orders, event.order) if event.order else record.orders,
        by=event.by or record.by,
    )
    return record, (*_changing(record), *(() if quiet else _saying(record, event, warning=overridden)))


def _remember(record: NodeQuarantine, event: Remember, now: Now) -> Result:
    changes: dict[str, object] = {}
    if record.ended_wall_s is None:  # a person wrote its state
        changes = {"ended_wall_s": now.wall_s, "ended_by": EndedBy.PERSON}
    changes |= {"node_uid": event.node_uid, "boot_id": event.boot_id}
    return structs.replace(record, ignored=event.ignored, baseline=event.baseline, **changes), ()


def _mailed(record: NodeQuarantine, event: Told, now: Now) -> Result:
    mails = tuple(event.mail if one.stage == event.mail.stage else one for one in record.mails)
    return structs.replace(record, mails=mails), ()


def _to_tell(record: NodeQuarantine, event: Event, effects: tuple[Effect, ...], now: Now) -> NodeQuarantine:
    """What is told by mail stands in the record that is saved first, so that no successor forgets or repeats it."""
    stage = event.reason.value
    if not any(isinstance(one, DoTell) for one in effects) or any(one.stage == stage for one in record.mails):
        return record
    return structs.replace(record, mails=(*record.mails, NodeMail(stage=stage, wall_s=now.wall_s)))


S = State

TRANSITIONS: Table[State | None, NodeQuarantine, tuple[Effect, ...], State] = {
    (None, Open): (_open, (S.HELD, S.ACTIVE)),
    (S.HELD, HeldBack): (_held_back, (S.HELD,)),
    (S.HELD, Isolate): (_isolate, (S.ACTIVE,)),
    (S.HELD, Found): (_found, (S.HELD,)),
    (S.HELD, Moved): (_moved, (S.HELD,)),
    (S.HELD, End): (_end, (S.RELEASED,)),
    (S.ACTIVE, Marked): (_marked, (S.ACTIVE,)),
    (S.ACTIVE, Found): (_found, (S.ACTIVE,)),
    (S.ACTIVE, Well): (_well, (S.ACTIVE,)),
    (S.ACTIVE, Isolate): (_isolate, (S.ACTIVE,)),
    (S.ACTIVE, HeldBack): (_held_back, (S.HELD,)),
    (S.ACTIVE, Moved): (_moved, (S.ACTIVE,)),
    (S.ACTIVE, Noted): (_noted, (S.ACTIVE,)),
    (S.ACTIVE, Acknowledged): (_acknowledged, (S.ACTIVE,)),
    (S.ACTIVE, Draining): (_draining, (S.ACTIVE,)),
    (S.ACTIVE, Removed): (_removed, (S.ACTIVE,)),
    (S.ACTIVE, FenceBegun): (_fence_begun, (S.ACTIVE,)),
    (S.ACTIVE, FenceEnded): (_fence_ended, (S.ACTIVE,)),
    (S.ACTIVE, End): (_end, (S.RELEASED, S.OVERRIDDEN)),
    **{(state, Told): (_mailed, (state,)) for state in S},
    (S.RELEASED, Remember): (_remember, (S.RELEASED,)),
    (S.OVERRIDDEN, Remember): (_remember, (S.OVERRIDDEN,)),
}


_MACHINE = Machine(TRANSITIONS, lambda record: record.state)


def step(record: NodeQuarantine | None, event: Event, now: Now, epoch: int) -> Result:
    """Move `record` (None: there is none yet) by one event. Raises UnexpectedEvent where TRANSITIONS has no row."""
    state = None if record is None else record.state
    moved, effects = _MACHINE.step(state, record, event, now)
    return structs.replace(_to_tell(moved, event, effects, now), epoch=epoch), effects
