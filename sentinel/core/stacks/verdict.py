"""The stacks of all ranks of a job that hangs → who waits where, and the one for which the others wait. Pure.

No rank is accused on doubtful evidence: where stacks do not tell, what is seen is said, and nobody is named.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from sentinel.core.model import Symptom, Verdict
from sentinel.core.signals import names
from sentinel.core.stacks.process_states import HALTED, STOPPED
from sentinel.core.stacks.reading import Head, Stack, in_backward, read, read_head

MOST_PLACES, MOST_LINES = 2, 4  # of those where ranks wait: in the sentence, in the evidence
FRAME_CHARS, FILE_CHARS, FUNCTION_CHARS = 100, 45, 50
# None of them lets a rank go before all of its group have come. From others, as broadcast, some go on before.
_TOGETHER = frozenset(
    {
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_gather_single",
        "all_reduce",
        "all_reduce_coalesced",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
    }
)
_BUSY, _STUCK = "R", "D"
_OR = {False: "did not get through the one before", True: "is through that pass, which they are not"}
# Where in the kernel a thread sleeps that waits for a lock, for another thread or for a time: for no host by itself.
_OWN_WAITS = ("futex", "nanosleep")


class Told(Struct, frozen=True):
    """`rank`: the one of which `why` tells, where it is one. `blamed`: it is the one to name."""

    rank: int | None = None
    why: str = ""
    lines: tuple[str, ...] = ()  # who stands where, where nobody is named
    blamed: bool = True


def named(verdict: Verdict, stacks: Sequence[str], size: int) -> Verdict:
    """Of a hang: with the rank for which all others wait, where logs do not tell it, and with where they stand. `size`:
    of the job; where it is one launcher, the stacks are those of the ranks that it has started."""
    if verdict.symptom != Symptom.HANG:
        return verdict
    told = _compared(stacks, size)
    new = told.why and told.why not in verdict.sentence
    said = structs.replace(verdict, sentence=f"{verdict.sentence} {told.why}") if new else verdict
    of_launcher, each = size == 1, len(stacks) == size
    if verdict.worker is not None or (not of_launcher and verdict.rank is not None):
        # Logs have named it. Stacks add where it stands, if they name the same one by a number of the same kind.
        same = each if verdict.worker is None else of_launcher
        return said if same and told.rank is not None and told.rank == verdict.who else verdict
    if told.rank is None or not told.blamed:
        lines = (line for line in told.lines if line not in verdict.evidence)
        return structs.replace(said, evidence=(*lines, *verdict.evidence))
    return structs.replace(
        said,
        rank=0 if of_launcher else told.rank if each else None,
        worker=told.rank if of_launcher else None,
    )


def _compared(texts: Sequence[str], size: int) -> Told:
    heads = [head for text in texts if (head := read_head(text)) is not None]
    if len(heads) < 2 or len({head.number for head in heads}) != len(texts):
        return Told()
    found = {head.number: read(text) for head, text in zip(heads, texts, strict=True)}
    if len(halted := [head for head in heads if head.state == HALTED]) == 1:
        return _of_halted(halted[0], found)
    out = {head.number: _ended(head, text) for head, text in zip(heads, texts, strict=True)}
    ended = [number for number, why in out.items() if why]
    stacks = {n: stack for n, stack in found.items() if stack is not None and n not in ended}
    if len(stacks) + len(ended) < len(found):
        return Told(lines=_lines(stacks))
    waiting = {number: stack for number, stack in stacks.items() if stack.waits}
    away = [number for number in stacks if number not in waiting]
    short = len(heads) < size  # of those that were not seen any may be the one
    if len(ended) + len(away) > (not short) or not waiting:
        return Told(lines=_lines(stacks))
    if ended:
        return Told(ended[0], f"Rank {ended[0]} {out[ended[0]]}; {_wait_for_it(waiting)}.")
    if away:
        return _of_away(next(head for head in heads if head.number == away[0]), stacks[away[0]], waiting)
    all_ = len(heads) == size or size == 1
    return _of_waiting(waiting, whole=all_ and sorted(waiting) == list(range(len(waiting))))


def _of_halted(head: Head, found: Mapping[int, Stack | None]) -> Told:
    others = {number: stack for number, stack in found.items() if stack is not None and number != head.number}
    wait = len(others) == len(found) - 1 and all(stack.waits for stack in others.values())
    one = found[head.number]
    where = "" if one is None else f", in {_at(one.waits or one.place, one.called)}"
    why = f"Rank {head.number} (pid {head.pid}) is {STOPPED[HALTED]}{where}"
    return Told(head.number, f"{why}; {_wait_for_it(others)}." if wait else f"{why}.")


def _ended(head: Head, text: str) -> str:
    """How; "": it runs."""
    if not head.pid and text.partition(":")[2].strip() == "gone":
        return "has ended"
    if head.state == "Z":
        return f"has ended (pid {head.pid})"
    stack = read(text)
    return f"ends, in {_at(stack.ends, stack.called)}" if stack is not None and stack.ends else ""


def _of_away(head: Head, one: Stack, others: Mapping[int, Stack]) -> Told:
    # A number that is fetched from the GPU (`loss.item()`) shows no frame of torch, and waits for the others' work too.
    # So may who waits for the next stage of a pipeline.
    # That it sleeps, not busy with a GPU that has not answered, is the kernel's word.
    asleep = all((stack.surely or stack.idle) and not stack.staged for stack in others.values())
    held_up = head.state == _STUCK or (one.idle and _waits_for_itself(head, one))
    surely = one.surely or one.runs or (one.idle and all(stack.surely for stack in others.values()))
    sure = surely or (held_up and asleep)
    # In the backward pass they may sleep for their GPUs, as far as stacks tell.
    others_do = _wait_for_it(others, asleep=not surely and _backward(others))
    if (one.sends and not one.runs) or not sure:
        return Told(lines=_lines({one.number: one, **others}))
    state = f" (pid {head.pid}, {STOPPED[_STUCK]}, in {head.channel or 'it'})" if head.state == _STUCK else ""
    does = "waits" if one.loads else "stands"
    helper = _helper(one)
    return Told(
        one.number,
        f"Rank {one.number}{state} {does} in {_at(one.place, one.called)}{f', {helper}' if helper else ''}; "
        f"{others_do}.",
        blamed=not one.pause,  # it saves or evaluates for the others: nothing is wrong with it by that
    )


def _backward(stacks: Mapping[int, Stack]) -> bool:
    return all(in_backward(stack.waits) for stack in stacks.values())


def _waits_for_itself(head: Head, one: Stack) -> bool:
    """Its own program holds it up, as far as can be seen."""
    own = bool(one.place) and not one.called and not one.staged
    return own and any(wait in head.channel for wait in _OWN_WAITS)


def _helper(one: Stack) -> str:
    """The process that it waits for, where one is known by its state or by where it stands."""
    if not one.awaits:
        return ""
    for helper in one.helpers:
        held = helper.state in STOPPED or (helper.state == _BUSY and not helper.waits_for_work)
        if held or (helper.place and not helper.waits_for_work):
            what = "worker" if one.loads else "child"
            channel = f" in {helper.channel}" if helper.channel else ""
            program = f", {helper.program}" if helper.program and not helper.place else ""
            place = f" stands in {short(helper.place)}" if helper.place else ""
            return (
                f"its {what} (pid {helper.pid}, {helper.state}{channel}{program}){place or ' is not through'}"
            )
    return ""


def _of_waiting(stacks: Mapping[int, Stack], *, whole: bool) -> Told:
    """All wait. In different collectives? One that waits alone went another way than all others; of several that wait
    elsewhere any may be right. Neither is said where they need not meet: in pipelines, in groups of ranks that are seen
    to be smaller than the job, in calls that let some go on before others; nor where lines alone differ, since one rank
    may come to the same collective by another line. All others may be in the backward pass, if they sleep there."""
    places = _places(stacks.values())
    sure = all(stack.surely for stack in stacks.values())
    if len(places) == 1:
        (place,) = places
        seen = "" if whole else " that were seen"
        return Told(why=f"All {len(stacks)} ranks{seen} {'wait' if sure else 'stand'} in {_at(*place)}.")
    lines = _lines(stacks)
    calls = {_function(waits) for waits, _ in places}
    staged = any(stack.staged for stack in stacks.values())
    if staged or not whole or len(places) != 2 or len(calls) != 2:
        return Told(lines=lines)
    (more, those), (less, these) = places.items()
    alone = len(these) == 1 and len(those) > 1
    backward = in_backward(more[0])
    asleep = backward and all(stacks[number].idle for number in those)
    if not calls <= _TOGETHER and not (alone and asleep and _function(less[0]) in _TOGETHER):
        return Told(lines=lines)
    if alone:
        return Told(
            these[0],
            f"Rank {these[0]} waits in {_at(*less)}, where no other rank does; all {len(those)} others "
            f"{'sleep' if backward else 'wait'} in {_at(*more)}: it went another way, or {_OR[backward]}.",
        )
    first, wait = names(those), "waits" if len(those) == 1 else "wait"
    here = f"{first[0].upper()}{first[1:]} {wait} in {_at(*more)}"
    return Told(why=f"{here}, {names(these)} in {_at(*less)}: they wait for each other.", lines=lines)


# ---------------------------------------------------------------- words


def _wait_for_it(others: Mapping[int, Stack], *, asleep: bool = False) -> str:
    """`asleep`: no more is known of them than that they sleep."""
    verb, for_it = ("sleep", "") if asleep else ("wait", " for it")
    places = list(_places(others.values()).items())
    who = f"the other {verb}s" if len(others) == 1 else f"all {len(others)} others {verb}"
    if len(places) == 1:
        return f"{who}{for_it} in {_at(*places[0][0])}"
    told = [f"{len(numbers)} ({names(numbers)}) in {_at(*place)}" for place, numbers in places[:MOST_PLACES]]
    if left := sum(len(numbers) for _, numbers in places[MOST_PLACES:]):
        told.append(f"{left} elsewhere")
    return f"{who}{for_it}: {', '.join(told)}"


def _lines(stacks: Mapping[int, Stack]) -> tuple[str, ...]:
    """For the evidence: who stands where, most ranks first."""
    places = list(_places(stacks.values()).items())
    told = []
    for place, numbers in places[:MOST_LINES]:
        waits = any(stacks[number].waits for number in numbers)
        word = ("waits" if waits else "stands") if len(numbers) == 1 else "wait" if waits else "stand"
        told.append(f"{names(numbers)} {word} in {_at(*place)}")
    if left := sum(len(numbers) for _, numbers in places[MOST_LINES:]):
        told.append(f"{left} ranks stand elsewhere")
    return tuple(told) if len(stacks) > 1 else ()


def _places(stacks: Iterable[Stack]) -> dict[tuple[str, str], list[int]]:
    """Numbers of ranks by the frame and the program's line, the most first."""
    found: dict[tuple[str, str], list[int]] = {}
    for stack in stacks:
        found.setdefault((stack.waits or stack.place, stack.called), []).append(stack.number)
    return dict(sorted(found.items(), key=lambda place: (-len(place[1]), place[1])))


def _at(frame: str, called: str) -> str:
    return f"{short(frame)}, called at {_tail(called)}" if called else short(frame)


def short(frame: str) -> str:
    """As it is, unless it is long."""
    if len(frame) <= FRAME_CHARS:
        return frame
    function, _, file = frame.removesuffix(")").partition(" (")
    cut = function if len(function) <= FUNCTION_CHARS else f"…{function[1 - FUNCTION_CHARS :]}"
    return f"{cut} ({_tail(file)})"


def _tail(file: str) -> str:
    return file if len(file) <= FILE_CHARS else f"…{file[1 - FILE_CHARS :]}"


def _function(frame: str) -> str:
    return frame.partition(" (")[0].rpartition(".")[2]
