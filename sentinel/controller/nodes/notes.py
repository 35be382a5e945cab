"""What holds the leader back as a whole, noted when it begins and ends: in the log, as a number, and for people."""

from collections.abc import Callable, Iterator

import structlog
from msgspec import Struct, structs

from sentinel.controller.nodes.numbers import WHYS
from sentinel.core.fleet.model import NodeMail
from sentinel.core.now import Now
from sentinel.metrics import declared
from sentinel.metrics.registry import Metrics

log = structlog.get_logger(__name__)

MASS = "mass-silence"  # somebody must look: the others end by themselves


class Notice(Struct, frozen=True):
    """A mail that belongs to no record. It is forgotten with the leadership; a successor tells it by its own."""

    id: str
    sentence: str
    mail: NodeMail


class Notes:
    def __init__(self, metrics: Metrics, tell: Callable[[str], None]) -> None:
        self._metrics, self._tell = metrics, tell
        self._standing: dict[str, str] = {}
        self._notices: dict[str, Notice] = {}
        self.paused = ""  # by whom or why

    def pause(self, why: str) -> None:
        """`why`: "" where it is not paused."""
        if why != self.paused:
            self.paused = why
            log.info("fleet_paused", why=why)
            self._tell(f"is paused: {why}" if why else "is not paused any more")

    def clear(self) -> None:
        self._standing, self._notices = {}, {}

    def note(self, found: dict[str, str], epoch: int, now: Now) -> bool:
        """True: there is something to tell by mail."""
        self._metrics.replace(declared.UNJUDGED, {(why,): int(why in found) for why in WHYS})
        news = False
        for why, sentence in found.items():
            if why not in self._standing:
                log.warning("fleet_unjudged", why=why, sentence=sentence)
                if why == MASS:
                    self._tell(sentence)
                    id = f"{MASS}-{epoch}-{now.wall_s:.0f}"
                    self._notices = {id: Notice(id, sentence, NodeMail(stage=MASS, wall_s=now.wall_s))}
                    news = True
        for why in self._standing.keys() - found.keys():
            log.info("fleet_judged_again", why=why)
            if why == MASS:
                self._tell("Nodes that are silent are judged again.")
        self._standing = dict(found)
        return news

    def waiting(self) -> Iterator[Notice]:
        return (one for one in self._notices.values() if one.mail.state == "waiting")

    def record(self, id: str, mail: NodeMail) -> bool:
        """False: it is no notice."""
        known = self._notices.get(id)
        if known is not None:
            self._notices[id] = structs.replace(known, mail=mail)
        return known is not None
