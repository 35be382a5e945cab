"""What NVIDIA's driver says about its cards, asked through a child process that can be killed when a call hangs."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from sentinel import rights
from sentinel.checks.base import Absent, Look, Unknown
from sentinel.checks.child import ChildBroke, ChildHangs, ChildMemory, LineChild
from sentinel.checks.gpus import given_away, hidden, inventory, reads_nothing
from sentinel.checks.node_root import HIDDEN, is_hidden
from sentinel.checks.nvidia.card import UNKNOWN, Card, Past, entity_of, finding
from sentinel.checks.nvidia.driver_library import is_here
from sentinel.checks.nvidia.heat import judge_heat, judge_pace, judge_throttling, note_pace, note_throttling
from sentinel.checks.nvidia.links import judge_fabric, judge_nvlink, judge_pcie
from sentinel.checks.nvidia.measures import measures
from sentinel.checks.nvidia.memory import judge_memory, judge_orphans
from sentinel.checks.nvidia.node import judge_alike, judge_count, judge_expected, judge_set_up, judge_twins
from sentinel.checks.nvidia.nvml_sample import Device, Event, Sample
from sentinel.checks.proc_scan import in_hosts_pid_namespace
from sentinel.checks.shape import expected, in_time
from sentinel.checks.xid import recovery_meaning, xid_meaning
from sentinel.core.health import Component, Finding, Severity

START_DEADLINE_S = 30.0  # without persistence mode the driver first wakes every card
CALL_DEADLINE_S = 10.0  # a healthy sample of 8 cards takes well under 1 s
# An NVML that hangs so long does not come back without a restart; one that wakes its cards at a boot may take a minute,
# in which it cannot be killed either.
HANG_FATAL_S = 120.0
HANG_AGAIN_S = 5.0  # until it is asked again
# Below the interval: the second look. Never the first, whatever PCI reads: a card in a reset is gone for a moment.
UNKNOWN_FATAL_S = 20.0
# NVML lists cards as they were when it was started: a new child sees the new state. Only where persistence mode
# is on, since else a card that nobody uses is put to sleep and woken again for it.
RENEW_S = 600.0
XID_EVENT = 0x8
LIB_RM_VERSION_MISMATCH = 18
OPEN_WAIT_S = 2.0
CONTROL = "dev/nvidiactl"  # without it NVML does not begin
# Isolated, with our own root: modules in the current directory or a PYTHONPATH, which are the job's, stay out.
_ROOT = str(Path(__file__).resolve().parents[3])
_CHILD = (
    "import sys; sys.path.insert(0, sys.argv[1]); from sentinel.checks.nvidia.nvml_child import main; main()"
)


class Memory(ChildMemory):
    """Times are CLOCK_BOOTTIME."""

    started_s: float = 0.0  # when the child was
    renewable: bool = False  # a new child wakes no card
    hangs_since_s: float | None = None
    doubted: set[str | int] = msgspec.field(default_factory=set)  # cards on PCI, indices of NVML's, last time
    hidden: set[str] = msgspec.field(default_factory=set)  # of those on PCI, the ones that are others' to use
    pasts: dict[str, Past] | None = None  # by entity; None: this agent has not looked yet
    call_deadline_s: float | None = None  # where it is another than CALL_DEADLINE_S and START_DEADLINE_S


# ---------------------------------------------------------------- asking the child


def _ask(look: Look, *, anew: bool = False) -> Sample:
    """One sample, `anew` of a new child. Raises Unknown, with a finding where NVML hangs."""
    memory = look.kept.own(Memory)
    if memory.child is None:
        memory.child = LineChild([sys.executable, "-I", "-c", _CHILD, _ROOT, look.root], wakes=True)
        look.kept.wake_fd = memory.child.wake_fd
    child = memory.child
    if anew:
        child.stop()
    child.drain_wakes()
    starts = child.pid is None
    if starts:
        memory.started_s = look.now.mono_s
    deadline_s = max(START_DEADLINE_S if starts else CALL_DEADLINE_S, look.kept.within_s or 0.0)
    if memory.call_deadline_s is not None:
        deadline_s = memory.call_deadline_s
    if memory.hangs_since_s is not None:  # what lasts is told when it is to be, and not when a call is over
        left_s = memory.hangs_since_s + HANG_FATAL_S - look.now.mono_s
        deadline_s = min(deadline_s, max(left_s, CALL_DEADLINE_S)) if left_s > 0 else deadline_s
    asked_s = time.monotonic()
    try:
        line = child.ask(f"{look.now.mono_s:.3f}".encode(), deadline_s)
        memory.hangs_since_s = None
        return msgspec.json.decode(line, type=Sample)
    except ChildHangs as hang:
        if memory.hangs_since_s is None:
            memory.hangs_since_s = look.now.mono_s
        look.kept.again_s = HANG_AGAIN_S
        lasting = look.now.mono_s + time.monotonic() - asked_s - memory.hangs_since_s >= HANG_FATAL_S
        begins = Severity.DEGRADED if look.kept.within_s is not None else Severity.WARNING
        severity = Severity.FATAL if lasting else begins
        summary = "NVIDIA's driver does not answer"
        raise Unknown(
            f"NVML: {hang}",
            (finding("node", "nvml-hangs", severity, "RESTART_BM", summary, str(hang)),),
        ) from None
    except (ChildBroke, msgspec.DecodeError) as error:
        raise Unknown(f"NVML child: {error}") from None


def _sample(look: Look, on_pci: Sequence[str]) -> Sample:
    """A sample of a child that is not too old to see a card that went or came."""
    memory = look.kept.own(Memory)
    sample = _ask(look, anew=memory.renewable and look.now.mono_s - memory.started_s >= RENEW_S)
    mismatch = sample.problem_code == LIB_RM_VERSION_MISMATCH
    if mismatch and look.now.mono_s - memory.started_s >= RENEW_S:
        sample = _ask(look, anew=True)  # a new one has the library that is there now
    missing = {item.entity for item in judge_count(_named(sample.devices, on_pci), on_pci)}
    doubted = missing | {device.index for device in sample.devices if device.error == UNKNOWN}
    before, hidden = memory.doubted, memory.hidden
    if doubted and doubted != before and memory.started_s != look.now.mono_s:
        sample = _ask(look, anew=True)  # whether a new NVML says so too
    memory.hidden = {one for one in missing if (one in hidden if one in before else _is_hidden(look, one))}
    memory.doubted = doubted
    memory.renewable = all(device.identity.persistence == 1 for device in sample.devices)
    return sample


def _is_hidden(look: Look, entity: str) -> bool:
    """Asked once for each card that is missing: a broken one tries to start whenever it is opened."""
    sysfs, procfs, pci = look.settings.sysfs, look.settings.procfs, entity.removeprefix("GPU ")
    contained = not in_hosts_pid_namespace(procfs) or not rights.has_devices(procfs)
    return bool(in_time(lambda: hidden(sysfs, procfs, pci, contained), OPEN_WAIT_S))


def _named(devices: Sequence[Device], on_pci: Sequence[str]) -> list[Device]:
    """A lost card may not tell its address: it is the one that is missing, where the numbers fit (all in PCI order)."""
    told = {entity_of(device.identity.pci, device.index) for device in devices if device.identity.pci}
    left = [entity for entity in on_pci if entity not in told]
    nameless = [device for device in devices if not device.identity.pci]
    if len(left) != len(nameless):
        return list(devices)
    address = {
        device.index: entity.removeprefix("GPU ") for device, entity in zip(nameless, left, strict=True)
    }
    return [
        msgspec.structs.replace(
            device, identity=msgspec.structs.replace(device.identity, pci=address[device.index])
        )
        if device.index in address
        else device
        for device in devices
    ]


# ---------------------------------------------------------------- judging


def judge_state(card: Card, sysfs: str) -> Iterator[Finding]:
    """Whether the card is there, and what the driver itself asks for."""
    error = card.device.error
    lasts_s = card.past.lasts_s(UNKNOWN, card.now_s, error == UNKNOWN)
    if error == "lost":
        yield card.finding(
            "gpu-lost", Severity.FATAL, "RESTART_BM", "The GPU is lost", "NVML says GPU is lost"
        )
    elif error == "reset-required":
        yield card.finding(
            "gpu-reset-required",
            Severity.FATAL,
            "RESET_GPU",
            "The GPU needs a reset",
            "NVML says reset required",
        )
    elif error == UNKNOWN:
        on_pci = "reads ff" if reads_nothing(sysfs, card.entity.removeprefix("GPU ")) else "can be read"
        yield card.finding(
            "gpu-no-answer",
            Severity.FATAL if lasts_s >= UNKNOWN_FATAL_S else Severity.WARNING,
            "RESTART_BM",
            "The driver cannot reach the GPU",
            f"NVML says Unknown Error for it, for {lasts_s:.0f} s; its configuration on the PCI bus {on_pci}",
        )
    elif error:
        yield card.finding(
            "gpu-no-answer",
            Severity.WARNING,
            "CONTACT_SUPPORT",
            "NVML gives no handle of the GPU",
            f"index {card.device.index}",
        )
    if card.device.recovery_action:
        meaning = recovery_meaning(value=card.device.recovery_action)
        yield card.finding(
            "gpu-recovery-action", meaning.severity, meaning.action, meaning.title, meaning.reason
        )


def xid_finding(event: Event, look: Look, uuid: str = "") -> Finding:
    """As the kernel's line about it would be named: the book counts the two once."""
    meaning = xid_meaning(event.data)
    code = f"XID {event.data}"
    return Finding(
        check="nvml",
        component=Component.GPU,
        entity=entity_of(event.pci, -1) if event.pci else "GPU (address unknown)",
        code=code,
        severity=meaning.severity,
        action=meaning.action,
        summary=f"{code}: {meaning.title} ({meaning.reason})",
        evidence=(f"NVML event: Xid {event.data}",),
        event=True,
        first_seen_wall_s=look.now.wall_s - event.age_s,
        last_seen_wall_s=look.now.wall_s - event.age_s,
        seen_mono_s=look.now.mono_s - event.age_s,
        uuid=uuid,
        boot_id=look.boot_id,
    )


def _since(grown: Finding, sampled_s: float, look: Look) -> Finding:
    """What a counter grew by came between the sample before and now."""
    ago_s = look.now.mono_s - sampled_s if sampled_s else 0.0
    return msgspec.structs.replace(
        grown,
        first_seen_wall_s=look.now.wall_s - ago_s,
        last_seen_wall_s=look.now.wall_s,
        seen_mono_s=look.now.mono_s,
        boot_id=look.boot_id,
    )


def judge_card(
    card: Card, peers: Sequence[Card], look: Look, gone: Callable[[int], bool] | None
) -> list[Finding]:
    """All findings of one card; `peers` are the other cards of its model."""
    limits = look.settings.gpu
    links = [card.device.links, *(peer.device.links for peer in peers)]
    usual_links = max((len(item.nvlink_active) for item in links if item is not None), default=0)
    return [
        *judge_state(card, look.settings.sysfs),
        *judge_memory(card, limits),
        *judge_orphans(card, gone, limits),
        *judge_heat(card),
        *judge_throttling(card, peers, limits),
        *judge_pace(card, peers),
        *judge_pcie(card, peers, limits),
        *judge_nvlink(card, usual_links),
        *judge_fabric(card, bool(peers)),
        *judge_set_up(card),
    ]


def _pasts(look: Look) -> dict[str, Past]:
    """What is remembered of each card; at the start of an agent what its predecessor saved."""
    memory = look.kept.own(Memory)
    if memory.pasts is None:
        memory.pasts = {}
        for entity, saved in (look.kept.saved or {}).items():
            memory.pasts[entity] = Past.restored(saved)
    return memory.pasts


def _cards(sample: Sample, look: Look) -> list[Card]:
    pasts = _pasts(look)
    cards: dict[str, Card] = {}
    for device in sample.devices:
        entity = entity_of(device.identity.pci, device.index)
        if entity in cards:  # a faulty report: two cards with one address are still two cards
            entity = entity_of("", device.index)
        past = pasts.setdefault(entity, Past())
        cards[entity] = Card(entity=entity, device=device, past=past, now_s=look.now.mono_s)
    for entity in pasts.keys() - cards.keys():
        pasts[entity].since_s.pop(UNKNOWN, None)  # nothing is said of it now: another driver may be loaded
    return list(cards.values())


def _judge(sample: Sample, look: Look, on_pci: Sequence[str]) -> list[Finding]:
    def gone(pid: int) -> bool:
        return not os.path.exists(os.path.join(look.settings.procfs, str(pid)))

    sees_processes = in_hosts_pid_namespace(look.settings.procfs)  # elsewhere NVML's pids are not ours
    cards = _cards(sample, look)
    xids = [event for event in sample.events if event.kind == XID_EVENT]
    for card in cards:
        for event in xids:
            if entity_of(event.pci, -1) == card.entity:
                card.past.xid, card.past.xid_s = event.data, look.now.mono_s
        note_throttling(card)
        note_pace(card)
    uuids = {card.entity: card.device.identity.uuid for card in cards}
    found = [xid_finding(event, look, uuids.get(entity_of(event.pci, -1), "")) for event in xids]
    for card in cards:
        name = card.device.identity.name
        peers = [peer for peer in cards if peer is not card and peer.device.identity.name == name]
        judged = judge_card(card, peers, look, gone if sees_processes else None)
        found += [_since(finding, card.past.at_s, look) if finding.event else finding for finding in judged]
    found += judge_count(
        sample.devices, [card for card in on_pci if card not in look.kept.own(Memory).hidden]
    )
    found += judge_expected(sample.devices, sample.driver, look.settings.shape)
    found += judge_twins(sample.devices)
    found += judge_alike(cards)
    for card in cards:
        card.past.keep(card.device, look.now.mono_s)
    look.kept.saved = {entity: past.saved() for entity, past in _pasts(look).items()}
    look.kept.measures = measures(cards)
    return found


def _detail(sample: Sample, look: Look) -> str:
    """What was not looked at: an expectation that is not set, functions that this driver does not have."""
    shape = look.settings.shape
    said = [
        expected(shape, field) for field in ("gpu_name", "driver", "vbios") if getattr(shape, field) is None
    ]
    if sample.missing:
        said.append(f"driver {sample.driver} does not have {', '.join(sample.missing)}")
    if sample.denied:
        said.append(f"needs root: {', '.join(sample.denied)}")
    if hidden := look.kept.own(Memory).hidden:
        said.append(f"not ours to use, so not looked at: {', '.join(sorted(hidden))}")
    if not in_hosts_pid_namespace(look.settings.procfs):
        said.append("not in the host's pid namespace: memory that no living process holds is not seen")
    return "; ".join(said)


def _lacks(look: Look) -> list[str]:
    """What keeps a container from asking the driver of its node."""
    procfs = look.settings.procfs
    lacks = [HIDDEN] if is_hidden(look.root) else []
    if not rights.has_devices(procfs) and not os.path.exists(os.path.join(procfs, "self/root", CONTROL)):
        lacks.append(f"/{CONTROL} is not here: it needs {rights.DEVICES}, or the runtime class nvidia")
    return lacks


def check(look: Look) -> list[Finding]:
    sysfs = look.settings.sysfs
    on_pci = [gpu.entity for gpu in inventory(sysfs) if not given_away(sysfs, gpu.pci)]
    if not on_pci and not is_here():
        raise Absent("no NVIDIA GPU on the PCI bus and no NVML library")
    sample = _sample(look, on_pci)
    if sample.problem_code == LIB_RM_VERSION_MISMATCH:
        summary = "The driver in the kernel and its library are of two versions: no program can use the GPUs"
        mismatch = finding(
            "node", "driver-mismatch", Severity.DEGRADED, "RESTART_BM", summary, f"NVML: {sample.problem}"
        )
        raise Unknown(f"NVML: {sample.problem}", (mismatch,))
    if sample.problem:
        if not on_pci:
            raise Absent(f"no NVIDIA GPU on the PCI bus; NVML: {sample.problem}")
        raise Unknown("; ".join((f"NVML: {sample.problem}", *_lacks(look))))
    if not sample.devices and not on_pci:
        raise Absent(f"driver {sample.driver} lists no GPU")
    sample = msgspec.structs.replace(sample, devices=_named(sample.devices, on_pci))
    look.kept.detail = _detail(sample, look)
    return _judge(sample, look, on_pci)
