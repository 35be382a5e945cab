"""What Sentinel and its short-lived mail child say to each other: one JSON document in, one JSON line per mail out."""

from msgspec import Struct

from sentinel.notify.compose import MailRequest
from sentinel.settings import Mail, Webhook


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Read from standard input. `settings.outbox` is an absolute path."""

    settings: Mail
    requests: list[MailRequest]
    deadline_s: float = 120.0  # of the whole child
    webhooks: tuple[Webhook, ...] = ()
    held: str = ""  # why the mail server is not asked now; webhooks are


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one mail, written the moment it is known. Every recipient stands in one of the three."""

    message_id: str
    state: str  # sent | temporary | permanent
    accepted: tuple[str, ...] = ()
    delayed: dict[str, str] = {}  # address -> what the server said
    refused: dict[str, str] = {}
    error: str = ""
    server: bool = False  # the trouble is the server's or the settings', and would hit every mail
    path: str = ""  # of the file, where the mail went to the outbox
