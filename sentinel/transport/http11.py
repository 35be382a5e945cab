"""The part of HTTP/1.1 that both ends speak: POST, Content-Length, keep-alive, answers in order (RFC 9112).

Strict on purpose: what is ambiguous (two lengths, a chunked body, a folded line) is refused, not guessed.
"""

from msgspec import Struct

MAX_HEAD_BYTES = 16 << 10  # a service-account token is 1 to 2 KiB
END = b"\r\n\r\n"

PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    413: "Content Too Large",
    421: "Misdirected Request",
    426: "Upgrade Required",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class BadHead(Exception):
    """What came is not a head that this side understands. The text says why and repeats nothing of it."""


class Request(Struct, frozen=True):
    path: str
    length: int
    token: str | None  # of `Authorization: Bearer`


class Answer(Struct, frozen=True):
    status: int
    length: int
    close: bool


def parse_request(head: bytes) -> Request:
    """A request's head without its last empty line. Raises BadHead."""
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadHead("the first line is not a request of HTTP/1.1")
    if words[0] != b"POST":
        raise BadHead("the only method is POST")
    fields = _fields(lines)
    token = fields.get(b"authorization")
    if token is not None:
        scheme, _, token = token.partition(b" ")
        token = token.strip()
        if scheme.lower() != b"bearer" or not token:
            raise BadHead("Authorization is not a bearer token")
    return Request(_ascii(words[1]), _length(fields), None if token is None else _ascii(token))


def parse_answer(head: bytes) -> Answer:
    """An answer's head without its last empty line. Raises BadHead."""
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise BadHead("the first line is not an answer of HTTP/1.1")
    fields = _fields(lines)
    close = fields.get(b"connection", b"").lower() == b"close"
    return Answer(int(words[1]), _length(fields), close)


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        name = name.lower()
        if not colon or not name or name != name.strip():
            raise BadHead("a line of the head is not NAME: VALUE")
        if name in fields and name in (b"content-length", b"authorization"):
            raise BadHead(f"{name.decode()} stands twice")
        fields[name] = value.strip()
    if b"transfer-encoding" in fields:
        raise BadHead("a body needs Content-Length, not Transfer-Encoding")
    return fields


def _length(fields: dict[bytes, bytes]) -> int:
    length = fields.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 15:
        raise BadHead("Content-Length is not a number")
    return int(length)


def _ascii(word: bytes) -> str:
    try:
        return word.decode("ascii")
    except UnicodeDecodeError:
        raise BadHead("the head is not ASCII") from None


def request_head(path: str, host: str, content_type: str, length: int, token: str | None) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        f"Content-Type: {content_type}",
        f"Content-Length: {length}",
    ]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def answer_head(
    status: int, content_type: str, length: int, *, close: bool, retry_after_s: float = 0.0
) -> bytes:
    text = (
        f"HTTP/1.1 {status} {PHRASES[status]}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {length}\r\nCache-Control: no-store\r\n"
    )
    if retry_after_s > 0:
        text += f"Retry-After: {max(1, round(retry_after_s))}\r\n"
    if close:
        text += "Connection: close\r\n"
    return (text + "\r\n").encode("ascii")
