"""What Sentinel and its short-lived mail child say to each other: one JSON document in, one JSON line per mail out."""

from collections.abc import Sequence

from msgspec import Struct

from sentinel.notify.compose import MailRequest
from sentinel.settings import Mail, Webhook

# Times the time-out: who has the whole mail may look through it before it says so. RFC 5321, 4.5.3.2.6: 10 min. Who is
# not waited for so long gets the mail again.
DATA_TIMES = 20


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Read from standard input. `settings.outbox` is an absolute path."""

    settings: Mail
    requests: list[MailRequest]
    deadline_s: float = 120.0  # of the whole child
    webhooks: tuple[Webhook, ...] = ()
    held: str = ""  # why the mail server is not asked now; webhooks are


def longest_s(mail: Mail, hooks: Sequence[Webhook], requests: Sequence[MailRequest]) -> float:
    """To connect (twice at most), to say goodbye, and for each mail its sender, recipients, data and hooks."""
    answers = 3 + sum(2 + len(one.recipients) + 2 * DATA_TIMES for one in requests)
    return mail.timeout_s * answers + len(requests) * max((hook.timeout_s for hook in hooks), default=0.0)


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
