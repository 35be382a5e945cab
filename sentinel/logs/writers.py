"""Several ranks of one launcher print into one log: who told an iteration, and which of them is a new one."""

import re
from collections import Counter, deque

# torchrun --tee, c10d and Sentinel, Open MPI --tag-output; with the runtime's head of a CRI line before it
MARK = re.compile(
    rb"(\S{20,40} std(?:out|err) [PF] )?"
    rb"\[(?:(?:default|rank ?)(\d{1,5})\]:? ?|1,(\d{1,5})\]<std(?:out|err|diag)>: ?)"
)
LABEL = re.compile(rb"() {0,4}(\d{1,5})(): ")  # srun --label
MAX_WRITERS = 4096
# A program may print `12: loss 0.4` of its own: numbers at the beginning are ranks only if they are 0 … n-1, and each
# has come so often.
LABEL_TIMES = 3
# Who leads may stop to print, and go on: after so many iterations of each of the others they count anew.
REBASE_LINES = 50


class Writers:
    """Of one log. Every iteration counts once, however many tell it; of marked lines those of who is ahead."""

    def __init__(self) -> None:
        self.expected = 1  # processes that may print, as far as is known
        self.told: dict[int, int] = {}  # marked number -> iterations that it has told
        self._most = 0
        self._recent: deque[int] = deque()  # steps that unmarked lines told
        self._labels: Counter[int] | None = Counter()  # None: lines without came too
        self._labelled = False
        self._left_out = 0  # in a row

    def number(self, line: bytes) -> int | None:
        """Of the rank whose line it is, where it says so."""
        if (mark := MARK.match(line)) is not None:
            number = int(mark.group(2) or mark.group(3))
            return number if number < MAX_WRITERS else None
        return self._label(line)

    def _label(self, line: bytes) -> int | None:
        if self._labels is None:
            return None
        found = LABEL.match(line)
        number = int(found.group(2)) if found else -1
        if not 0 <= number < MAX_WRITERS:
            self._labels = None
            return None
        if not self._labelled:
            self._labels[number] += 1
            several = 1 < len(self._labels) == max(self._labels) + 1
            self._labelled = several and min(self._labels.values()) >= LABEL_TIMES
        return number if self._labelled else None

    def counts(self, number: int | None, step: int | None) -> bool:
        """Is it an iteration that no other rank has told?"""
        new = self._is_new(step) if number is None else self._leads(number)
        most = REBASE_LINES * max(1, len(self.told)) if number is not None else 2 * self.expected
        self._left_out = 0 if new else self._left_out + 1
        if self._left_out <= most:
            return new
        self._recent.clear()
        self.told.clear()
        self._most = self._left_out = 0
        return self.counts(number, step)

    def _leads(self, number: int) -> bool:
        told = self.told[number] = self.told.get(number, 0) + 1
        if told <= self._most:
            return False
        self._most = told
        return True

    def _is_new(self, step: int | None) -> bool:
        if step is None or self.expected < 2:
            return True
        told = self._recent.count(step)
        self._recent.append(step)
        while len(self._recent) > 2 * self.expected:
            self._recent.popleft()
        return told % self.expected == 0
