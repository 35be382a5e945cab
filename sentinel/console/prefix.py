"""The output of several ranks as lines that say whose they are. Pure: time is an argument."""

from msgspec import Struct

PARTIAL_S = 0.5  # an unfinished line is shown after so long
BAR_S = 5.0  # a progress bar (carriage returns, no newline) is shown at most so often per rank
LINE_BYTES = 65536  # a longer line is shown in pieces


class _Rank(Struct):
    prefix: bytes
    held: bytes = b""  # what came since the last newline and is not shown yet
    since_s: float = 0.0  # of `held`
    bar_s: float = float("-inf")  # when its progress bar was last shown


class Prefixer:
    """Bytes of ranks in, whole lines with `[rank N] ` out.

    Of text that carriage returns overwrite, only what a terminal would show last is kept. A line that is
    not finished in PARTIAL_S is shown as far as it is, and left open: what the same rank writes next goes
    on in it, what another rank writes starts a new line.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._open: int | None = None  # whose unfinished line the cursor stands in

    @property
    def waits(self) -> bool:
        """Whether `flush` has something to show sooner or later."""
        return any(rank.held for rank in self._ranks.values())

    def feed(self, rank: int, data: bytes, now_s: float) -> bytes:
        state = self._ranks.get(rank)
        if state is None:
            state = self._ranks[rank] = _Rank(prefix=b"[rank %d] " % rank)
        if not state.held:
            state.since_s = now_s
        whole, end, rest = (state.held + data).rpartition(b"\n")
        out = bytearray()
        if end:
            if b"\r" in whole:
                whole = b"\n".join(map(_last_shown, whole.split(b"\n")))
            out += self._begin(rank, state)
            out += whole.replace(b"\n", b"\n" + state.prefix)  # of all lines at once: a flood has millions
            out += b"\n"
            self._open = None
            state.since_s = now_s
        overwritten = rest.rstrip(b"\r").rfind(b"\r")
        if overwritten > 0:
            rest = rest[overwritten:]
        if len(rest) > LINE_BYTES:
            out += self._begin(rank, state) + _last_shown(rest)
            rest = b""
        state.held = rest
        return bytes(out)

    def flush(self, now_s: float, *, end: bool = False) -> bytes:
        """What waited long enough; with `end`, everything, and the last line is finished."""
        out = bytearray()
        for rank, state in self._ranks.items():
            if not state.held:
                continue
            if b"\r" in state.held.rstrip(b"\r"):
                out += self._flush_bar(rank, state, now_s, end)
            elif end or now_s - state.since_s >= PARTIAL_S:
                # A carriage return at the end stays: it may be the first half of a line end.
                shown = state.held.rstrip(b"\r")
                if shown:
                    out += self._begin(rank, state) + shown
                state.held = state.held[len(shown) :] if not end else b""
                state.since_s = now_s
        if end and self._open is not None:
            self._open = None
            out += b"\n"
        return bytes(out)

    def _flush_bar(self, rank: int, state: _Rank, now_s: float, end: bool) -> bytes:
        if not end and (now_s - state.bar_s < BAR_S or now_s - state.since_s < PARTIAL_S):
            return b""
        line = self._begin(rank, state) + _last_shown(state.held) + b"\n"
        self._open = None
        state.held = b""
        state.bar_s = now_s
        return line

    def _begin(self, rank: int, state: _Rank) -> bytes:
        """What must stand before more text of this rank."""
        if self._open == rank:
            return b""
        start = b"" if self._open is None else b"\n"
        self._open = rank
        return start + state.prefix


def _last_shown(line: bytes) -> bytes:
    """What stands last of a line with carriage returns."""
    if b"\r" not in line:
        return line
    return line.rstrip(b"\r").rpartition(b"\r")[2]
