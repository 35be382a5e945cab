"""Timing lines → Iterations: which of the formats that a log has makes them.

A job may tell the same iteration in several formats. Per rank one format is primary and makes the
Iterations: the richest seen (hardware and end-to-end time, then end-to-end time, then a step number;
among equals the earlier row). Lines of other formats only lend their step number to a primary line that
has none. A primary that fell silent for SILENT_LINES lines of others gives way, a progress bar sooner. Where
the job's owner named formats, only those make Iterations.

What is written by hand (`fallback`) counts only where no format of a known trainer does, and an epoch only
where nothing finer does. Such a line may be a stray one, so that only a second one with a higher number
makes an Iteration. So it is with a format of which a line comes before the first step too (`at_start`, as DeepSpeed's
`step=0, skipped=0`): who has only begun may load for long.
"""

from collections.abc import Sequence

from msgspec import Struct, structs

from sentinel.core.reports import Iteration, Worker
from sentinel.logs.formats import Format, Values
from sentinel.logs.text import stamp_wall_s
from sentinel.logs.writers import Writers

SILENT_LINES = 50
SILENT_BAR_LINES = 5  # the training's own bar is drawn between any two lines of the training
COMEBACK_LINES = 3  # a format that gave way is primary again after so many of its lines in near succession
RANKS_APART = 10  # steps that one rank's line may come after another's, at most
MARK_BYTES = 80  # of a line, in which stands whose it is


class Epoch(Struct, frozen=True, gc=False):
    """The one that is under way, and how many steps were made before it. `longest`: of all seen."""

    number: int
    total: int
    before: int
    longest: int


class FormatState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has to survive a restart so that the choice of the primary format does."""

    primary: str = ""
    last_step: int | None = None
    lent_step: int | None = None
    numbered_after: bool = False
    last_number: int | None = None
    bar_total: int = 0
    epoch: Epoch | None = None
    silent: int = 0
    fell_back: bool = False
    unsure: dict[str, int | None] = {}  # formats of which one line came that proves nothing -> its number


class TimingParser:
    """Chunks of whole lines of one rank → Iterations; the result does not depend on how lines were chunked."""

    def __init__(self, formats: Sequence[Format], state: FormatState | None = None) -> None:
        self._formats = formats
        self._owned = any(form.owned for form in formats)
        self._primary: Format | None = None
        self._silent = 0  # lines of other formats since the last primary line
        self._last_step: int | None = None
        self._lent_step: int | None = None
        # The line that names the step comes after the primary line of the same iteration.
        self._numbered_after = False
        self._last_number: int | None = None  # the step that the newest such line named
        self._bar_total = 0
        self._epoch: Epoch | None = None
        self._retired: dict[int, tuple[int, int]] = {}  # format -> (line count when last seen, times)
        self._lines = 0
        self._unsure: dict[str, int | None] = {}
        self.fell_back = False  # a step was lower than the one before: they may begin anew in each epoch
        self.writers = Writers()
        self.left_out = 0  # lines of iterations that another rank had told; taken by the reader
        self.progress: dict[int, Worker] = {}  # where several mark their lines: what each told last
        if state is not None:
            self._primary = next(
                (f for f in formats if f.row.id == state.primary and f.owned == self._owned), None
            )
            self._last_step, self._lent_step = state.last_step, state.lent_step
            self._bar_total, self._silent, self._epoch = state.bar_total, state.silent, state.epoch
            self._numbered_after, self._last_number = state.numbered_after, state.last_number
            self._unsure, self.fell_back = dict(state.unsure), state.fell_back

    @property
    def unsure(self) -> bool:
        """Are its iterations told in no format of a known trainer?"""
        return self._primary is not None and not self._primary.sure

    @property
    def state(self) -> FormatState:
        return FormatState(
            primary=self._primary.row.id if self._primary else "",
            last_step=self._last_step,
            lent_step=self._lent_step,
            numbered_after=self._numbered_after,
            last_number=self._last_number,
            bar_total=self._bar_total,
            epoch=self._epoch,
            silent=self._silent,
            fell_back=self.fell_back,
            unsure=dict(self._unsure),
        )

    def feed(
        self,
        text: bytes,
        present: Sequence[Format],
        at_s: float,
        stamps: list[float | None] | None,
        wall_s: float,
        offsets: list[int] | None = None,
    ) -> list[Iteration]:
        """Iterations of `text`, in which only the formats `present` occur.

        The time stamp of each Iteration's line (or None) is appended to `stamps`, where it begins to `offsets`.
        """
        if not present:
            return []
        primary = self._primary
        alone = len(present) == 1 and present[0] is primary and self._lent_step is None
        if (
            stamps is None
            and offsets is None
            and alone
            and primary is not None
            and not self.writers.marked(text, primary.row.literal)
        ):
            quick = primary.quick(text, at_s)
            if quick is not None:
                if quick:
                    self._silent = 0
                    self._lines += len(quick)
                    self._last_step = None
                return quick
        found: dict[int, list[tuple[Format, Values]]] = {}
        told: list[tuple[int, int]] = []  # lines of which no poorer format could tell more
        for form in sorted(present, key=lambda form: form.rank, reverse=True):
            if form.epochs_only:  # they lend nothing
                told = _spans(text, sorted(found), [])
            news: list[int] = []
            for line_start, values in form.lines(text, told):
                found.setdefault(line_start, []).append((form, values))
                if values.number is not None:
                    news.append(line_start)
            if news and form is not present[-1]:
                told = _spans(text, news, told)
        iterations: list[Iteration] = []
        for line_start in sorted(found):
            iteration = self._line(found[line_start], at_s)
            if iteration is None:
                continue
            if not self._told_first(text[line_start : line_start + MARK_BYTES], iteration):
                self.left_out += 1
                continue
            iterations.append(iteration)
            if stamps is not None:
                stamps.append(stamp_wall_s(text[line_start : line_start + 128].split(b"\n", 1)[0], wall_s))
            if offsets is not None:
                offsets.append(line_start)
        return iterations

    def _told_first(self, head: bytes, iteration: Iteration) -> bool:
        """Several ranks may tell the same iteration. `head`: of its line."""
        number = self.writers.number(head)
        counts = self.writers.counts(number, iteration.step)
        if number is not None and len(self.writers.told) > 1:
            told = self.writers.told[number]
            step = told if iteration.step is None else iteration.step
            self.progress[number] = Worker(number=number, told=told, step=step)
        return counts

    def _line(self, candidates: list[tuple[Format, Values]], at_s: float) -> Iteration | None:
        """One line; several formats may know it, then the richest counts."""
        form, values = max(candidates, key=lambda candidate: candidate[0].rank)
        if len(candidates) > 1 and values.number is None:
            lent = next((v.number for f, v in candidates if v.number is not None and not f.epochs_only), None)
            if lent is not None:
                values = structs.replace(values, step=lent)
        self._lines += 1
        if form.row.progress_bar and not self._is_training_bar(values):
            return None
        before = self._last_step if form is self._primary else None
        if form is not self._primary and not self._make_primary(form, values):
            return None
        self._silent = 0
        bar_of_epoch = form.row.progress_bar and values.epoch is not None
        step = self._counted_on(values) if bar_of_epoch else values.number
        if step is None:
            step, self._lent_step = self._lent_step, None
        elif form.once and step == self._last_step:
            return None  # drawn again, or told for another part of the step
        if step is not None and before is not None:
            behind = RANKS_APART if self.writers.expected > 1 else 0
            self.fell_back = self.fell_back or step < before - behind
        self._last_step = step
        return Iteration(at_s, step, values.hardware_ms, values.e2e_ms)

    def _counted_on(self, values: Values) -> int:
        """The step, where the epochs before may have been longer: the last often is cut short."""
        assert values.step is not None
        assert values.total is not None
        assert values.epoch is not None
        number, total = values.epoch, values.total
        known = self._epoch or Epoch(number, total, total * number, total)
        longest = max(total, known.longest)
        if known.number == number:
            self._epoch = Epoch(number, max(total, known.total), known.before, longest)
        elif known.number == number - 1:
            self._epoch = Epoch(number, total, known.before + known.total, longest)
        else:
            self._epoch = Epoch(number, total, longest * number, longest)
        return self._epoch.before + values.step

    def _make_primary(self, form: Format, values: Values) -> bool:
        """A line of another format than the primary: does its Iteration count?"""
        primary = self._primary
        if self._owned and not form.owned:
            if values.number is not None and not form.epochs_only:
                self._lend(values.number)
            return False
        if primary is None:
            if not form.proves and not self._is_second(form, values):
                return False
            self._primary, self._unsure = form, {}
            if values.number is not None:
                self._lent_step = None
            self._numbered_after = values.number is None and self._lent_step is None
            return True
        richer = form.rank > primary.rank and self._may_return(form)
        self._silent += 1
        finer = primary.row.progress_bar and not form.row.progress_bar and not form.epochs_only
        if not richer and self._silent <= (SILENT_BAR_LINES if finer else SILENT_LINES):
            if values.number is not None and not form.epochs_only:
                self._lend(values.number)
            return False
        if not richer:
            self._retired[primary.index] = (self._lines, 0)
        told = richer and (values.number is None or values.number == self._last_step)
        self._primary, self._silent, self._lent_step = form, 0, None
        self._numbered_after, self._last_number = False, None
        # the poorer format has just told this same iteration: it must not count twice
        return not told

    def _is_second(self, form: Format, values: Values) -> bool:
        """Of a format that may be none, or that tells where the job begins: has such a line come before, with a lower
        number? A known trainer's may begin anew."""
        first = self._unsure.get(form.row.id)
        if form.row.id in self._unsure and (first is None or values.number is None or values.number > first):
            return True
        if form.sure and form.row.id in self._unsure and values.number != first:
            return True
        self._unsure[form.row.id] = values.number
        if values.number is not None and not form.epochs_only:
            self._lend(values.number)
        return False

    def _lend(self, number: int) -> None:
        """A line of another format named the step: of this iteration, or of the one just told, whose next one
        is as far ahead as this one was of the one before."""
        stride = 1 if self._last_number is None else max(1, number - self._last_number)
        self._last_number = number
        self._lent_step = number + stride if self._numbered_after else number

    def _may_return(self, form: Format) -> bool:
        seen = self._retired.get(form.index)
        if seen is None:
            return True
        last, times = seen
        times = times + 1 if self._lines - last <= SILENT_LINES else 1
        if times >= COMEBACK_LINES:
            del self._retired[form.index]
            return True
        self._retired[form.index] = (self._lines, times)
        return False

    def _is_training_bar(self, values: Values) -> bool:
        """The longest bar that is not finished is the training; a bar inside it is something else."""
        if values.total is None or values.step is None:
            return True
        if values.total < self._bar_total:
            return False
        self._bar_total = values.total if 0 < values.step < values.total else 0
        return True


def _spans(text: bytes, starts: list[int], others: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The lines that begin at `starts`, and `others`, as spans without a gap between neighbours, in order."""
    spans: list[tuple[int, int]] = []
    lines = [(start, text.find(b"\n", start) + 1 or len(text)) for start in starts]
    for start, end in sorted(lines + others) if others else lines:
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    return spans
