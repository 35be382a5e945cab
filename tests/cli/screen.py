"""A terminal screen that understands what the live line uses: enough of ECMA-48 and DEC VT100."""

import re

_TOKEN = re.compile(r"\x1b\[(\d*)([ABHJKm])|\x1b([78D])|\r|\n|\x08|[^\x1b\r\n\x08]|\x1b.", re.DOTALL)


class Screen:
    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0
        self.saved = (0, 0)

    def feed(self, data: bytes) -> "Screen":
        for match in _TOKEN.finditer(data.decode("utf-8", "replace")):
            count, control, escape = match.groups()
            text = match.group()
            if control:
                self._control(int(count or "1"), count, control)
            elif escape == "7":
                self.saved = (self.row, self.column)
            elif escape == "8":
                self.row, self.column = self.saved
            elif escape == "D":
                self._down()
            elif text == "\r":
                self.column = 0
            elif text == "\n":
                self._down()
            else:
                assert text != "\x1b", "an unknown escape sequence"
                self._put(text)
        return self

    @property
    def lines(self) -> list[str]:
        """What stands on the screen, trailing blanks and blank lines at the end left out."""
        lines = ["".join(row).rstrip() for row in self.cells]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def _control(self, count: int, given: str, control: str) -> None:
        if control == "A":
            self.row = max(0, self.row - count)
        elif control == "B":
            self.row = min(self.rows - 1, self.row + count)
        elif control == "K":
            assert given in ("", "2")
            start = 0 if given else self.column
            self.cells[self.row][start:] = [" "] * (self.columns - start)
        elif control == "H":
            self.row = self.column = 0
        elif control == "J" and given == "2":
            self.cells = [[" "] * self.columns for _ in range(self.rows)]
        elif control == "J":
            self.cells[self.row][self.column :] = [" "] * (self.columns - self.column)
            for row in range(self.row + 1, self.rows):
                self.cells[row] = [" "] * self.columns

    def _down(self) -> None:
        if self.row == self.rows - 1:
            self.cells = [*self.cells[1:], [" "] * self.columns]
        else:
            self.row += 1

    def _put(self, character: str) -> None:
        if self.column == self.columns:
            self.column = 0
            self._down()
        self.cells[self.row][self.column] = character
        self.column += 1
