"""The log format of container runtimes: `TIME STREAM P|F TEXT`, where P is a part of a longer line.

Source of the format: Kubernetes' CRI logging design and the kubelet's parser of it.
"""

from bisect import bisect_right

LINE_LIMIT_BYTES = 65_536


class CriDecoder:
    """Joins partial lines of each stream. Bounded: the tail of an overlong joined line is dropped."""

    def __init__(self, pending: dict[str, bytes] | None = None) -> None:
        self._pending = {stream.encode(): text for stream, text in (pending or {}).items()}
        self._starts: list[int] = []
        self._stamps: list[bytes] = []
        self.malformed = 0  # lines that are not CRI; they are taken as they stand

    @property
    def pending(self) -> dict[str, bytes]:
        """Parts whose end has not come, by stream."""
        return {stream.decode("latin-1"): text for stream, text in self._pending.items()}

    def decode(self, data: bytes) -> bytes:
        """Whole CRI lines → whole plain lines. `stamp_at` then knows the runtime's stamp of each."""
        out: list[bytes] = []
        self._starts, self._stamps = [], []
        length = 0
        for raw in data.split(b"\n"):
            if not raw:
                continue
            fields = raw.split(b" ", 3)
            if (
                len(fields) < 3
                or fields[1] not in (b"stdout", b"stderr")
                or fields[2][:1] not in (b"P", b"F")
            ):
                self.malformed += 1
                text = raw
                stamp = b""
            else:
                stamp, stream, tag = fields[0], fields[1], fields[2]
                text = fields[3] if len(fields) == 4 else b""
                held = self._pending.pop(stream, b"")
                if held:
                    text = (held + text)[:LINE_LIMIT_BYTES]
                if tag[:1] == b"P":
                    self._pending[stream] = text
                    continue
            self._starts.append(length)
            self._stamps.append(stamp)
            out.append(text)
            length += len(text) + 1
        out.append(b"")
        return b"\n".join(out)

    def flush(self) -> bytes:
        """What is still pending, as lines: the file has ended."""
        rest = b"".join(text + b"\n" for text in self._pending.values())
        self._pending.clear()
        return rest

    def stamp_at(self, offset: int) -> bytes:
        """The runtime's stamp of the line at `offset` of what `decode` last returned."""
        index = bisect_right(self._starts, offset) - 1
        return self._stamps[index] if index >= 0 else b""
