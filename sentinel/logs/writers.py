"""Several ranks of one launcher print into one log: who told an iteration, and which of them is a new one."""

import re
from collections import deque
from functools import cache
from itertools import pairwise
from typing import Any

from sentinel.logs.match import compile_re2

# torchrun --tee, c10d and Sentinel, Open MPI --tag-output; with the runtime's head of a CRI line before it
MARK = re.compile(
    rb"(\S{20,40} std(?:out|err) [PF] )?"
    rb"\[(?:(?:default|rank ?)(\d{1,5})\]:? ?|1,(\d{1,5})\]<std(?:out|err|diag)>: ?)"
)
BEGUN = r"\[(?:default|rank|1,)[^\n]*"  # of a line that MARK knows, up to any text behind the mark
LABEL = re.compile(rb"() {0,4}(\d{1,5})(): ")  # srun --label
# Launchers may write the end of a line by itself: that of another rank then stands behind the first, in the same line,
# and the end may have a mark of its own. Seen of Open MPI, which reads from a terminal, and of torchrun's --tee.
_MARKED = rb"\[(?:default\d{1,5}\]|1,\d{1,5}\]<std(?:out|err|diag)>):"
_MARKED_LINE = re.compile(rb"^" + _MARKED + rb"[^\n]+", re.MULTILINE)
_MARK_WITHIN = re.compile(rb"(?<=.)(?=" + _MARKED + rb")")
MAX_WRITERS = 4096
MAX_EXPECTED = 64  # unmarked: of one machine, and each line is compared with twice so many
# So often must lines in a row tell the same step before any is left out.
SURE_PAIRS = 2
# Who leads may print no more while the others go on: after so many lines for each of all they count anew.
REBASE_LINES = 4
# Several processes that print have, within so many lines, told a step twice or one that was past. Those that write when
# a buffer is full (8 KiB) do so within more.
ALONE_LINES, BUFFER_LINES = 16, 512


def apart(text: bytes) -> bytes:
    """What several ranks told in one line, each in a line of its own. The same object where no line has two marks."""
    marks = text.count(b"[default") + text.count(b"]<std")
    if not marks:
        return text
    begin = text.count(b"\n[default") + text.count(b"\n[1,") + text.startswith((b"[default", b"[1,"))
    if begin == marks:  # the usual case, many times as quick
        return text
    return _MARKED_LINE.sub(lambda line: _MARK_WITHIN.sub(b"\n", line[0]), text)


class Writers:
    """Of one log. Every iteration counts once, however many tell it; of marked lines those of who is ahead."""

    def __init__(self) -> None:
        self.expected = 1  # processes that may print, as far as is known
        self.labelled = False  # its lines begin with `3: `; a program may do so too, so somebody has to know
        self.told: dict[int, int] = {}  # marked number -> iterations that it has told
        self._leader = -1
        self._since_leader = 0  # lines of others since its last
        self._recent: deque[int] = deque()  # steps that unmarked lines told
        self._newest: int | None = None  # of them
        self._pairs = 0  # lines in a row of one step: one process alone prints none
        self._lines = (
            0  # unmarked ones, each of a later step than the one before; less than 0 after one that was not
        )
        self._left_out = 0  # of unmarked lines, in a row

    def marked(self, text: bytes, literal: str) -> bool:
        """May those lines of `text` in which `literal` stands tell whose they are?"""
        return self.labelled or bool(self.told) or _marked(literal).search(text) is not None

    def number(self, line: bytes) -> int | None:
        """Of the rank whose line it is, where it says so."""
        mark = MARK.match(line)
        if mark is None and self.labelled:
            mark = LABEL.match(line)
        if mark is None:
            return None
        number = int(mark.group(2) or mark.group(3))
        return number if number < MAX_WRITERS else None

    @property
    def several(self) -> bool:
        """May more than one process print iterations here? Often the first one does alone."""
        return bool(self.told) or (self.expected > 1 and self._lines < ALONE_LINES)

    def counts(self, number: int | None, step: int | None) -> bool:
        """Is it an iteration that no other rank has told?"""
        return self._is_new(step) if number is None else self._leads(number)

    def _leads(self, number: int) -> bool:
        told = self.told[number] = self.told.get(number, 0) + 1
        self._since_leader = 0 if number == self._leader else self._since_leader + 1
        if self._since_leader > REBASE_LINES * len(self.told):
            self.told = {number: 1}
        elif told <= self.told.get(self._leader, 0) and number != self._leader:
            return False
        self._leader, self._since_leader = number, 0
        return True

    def _is_new(self, step: int | None) -> bool:
        if step is None:
            return True
        before, self._newest = self._newest, step
        self._lines = self._lines + 1 if before is None or step > before else ALONE_LINES - BUFFER_LINES
        if self.expected < 2:
            return True
        self._pairs += step == before
        recent = self._recent
        known = sorted(set(recent))
        stride = min((b - a for a, b in pairwise(known)), default=1)
        # Another epoch begins, or all of them are through with this step.
        if known and (step < known[-1] - 2 * stride or self._left_out >= 2 * self.expected):
            recent.clear()
        told = recent.count(step)
        recent.append(step)
        if len(recent) > 2 * self.expected:
            recent.popleft()
        new = told % self.expected == 0 or self._pairs < SURE_PAIRS
        self._left_out = 0 if new else self._left_out + 1
        return new


@cache
def _marked(literal: str) -> Any:
    return compile_re2(BEGUN + re.escape(literal))
