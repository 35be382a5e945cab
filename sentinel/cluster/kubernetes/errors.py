"""What an API server's refusals mean to the one who asked: try again later, decide again, or give up.

Reasons and codes: https://kubernetes.io/docs/reference/using-api/api-concepts/ and
https://pkg.go.dev/k8s.io/apimachinery/pkg/apis/meta/v1#StatusReason
"""

import msgspec
from msgspec import Struct

from sentinel.util.errors import PermanentError, TemporaryError

MAX_RETRY_AFTER_S = 60.0
EPOCH_POLICY = "sentinel-epoch"  # what the names of the policies in deploy/admission.yaml begin with


class Unavailable(TemporaryError):
    """Nothing was done: the server is away, overloaded or starting. Try the same again."""


class Silent(Unavailable):
    """Nothing more came for as long as was waited."""


class Unanswered(TemporaryError):
    """It may have been done: the request was sent and no answer came, or one that leaves it open (500, 504).

    Read again before repeating a write.
    """


class Conflict(TemporaryError):
    """Nothing was done: the object is not any more what was read. Read it again and decide again."""


class Superseded(TemporaryError):
    """Nothing was done: deploy/admission.yaml does not let our epoch write. Another one leads, or the API server has
    not heard yet that we do: ask the election, and if it says so, try again."""


class Expired(TemporaryError):
    """410: the list or watch must begin anew."""


class NotFound(PermanentError):
    """The object, or its whole kind, is not there."""


class AlreadyExists(PermanentError):
    """An object of this name is there."""


class Forbidden(PermanentError):
    """401 or 403: as who we are, it may not be done."""


class Refused(PermanentError):
    """400, 422 and the like: the request itself is wrong, or validation or an admission policy refused it."""


class NotLeading(PermanentError):
    """Another one leads, or may: nothing was sent."""


class _Details(Struct):
    retryAfterSeconds: float = 0.0


class Status(Struct):
    """The body of a refusal (metav1.Status), also the object of a watch's ERROR event."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


_decode = msgspec.json.Decoder(Status).decode
_READS = ("GET", "HEAD")


def of_answer(method: str, path: str, code: int, body: bytes, retry_after: str = "") -> Exception:
    """The error that an answer of 400 or more stands for."""
    try:
        status = _decode(body)
    except msgspec.DecodeError:  # a proxy's page, for example
        status = Status(code, "", body[:200].decode(errors="replace"))
    return of_status(method, path, code, status, retry_after)


def of_status(method: str, path: str, code: int, status: Status, retry_after: str = "") -> Exception:
    said = f"{method} {path}: {code} {status.reason} {status.message[:500]}".rstrip()
    delay_s = _delay_s(status, retry_after)
    if code == 410 or status.reason in ("Expired", "Gone"):
        return Expired(said, 0.0)
    if code == 409:
        return (
            AlreadyExists(said, "AlreadyExists") if status.reason == "AlreadyExists" else Conflict(said, 0.0)
        )
    if code == 404:
        return NotFound(said, "NotFound")
    if code == 403 and EPOCH_POLICY in status.message:
        return Superseded(said, 0.2)
    if code in (401, 403):
        return Forbidden(said, status.reason or "Forbidden")
    if code in (429, 503):
        return Unavailable(said, delay_s)
    if code >= 500:
        return Unavailable(said, delay_s) if method in _READS else Unanswered(said, delay_s)
    return Refused(said, status.reason or "Refused")


def _delay_s(status: Status, retry_after: str) -> float:
    told = status.details.retryAfterSeconds if status.details else 0.0
    if retry_after.isascii() and retry_after.isdigit():
        told = max(told, float(retry_after))
    return min(told, MAX_RETRY_AFTER_S) or 1.0
