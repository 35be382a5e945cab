"""What to do about each alert, for the person whom its mail leads here. Nobody needs to sign in to read it."""

import hashlib
from functools import cache
from pathlib import Path

from sentinel import __version__
from sentinel.web.html import document
from sentinel.web.server import Asked, Place, Told

PATH = "/runbooks"


@cache
def sections() -> str:
    """docs/runbooks.md, by scripts/runbooks.py, below a way to the other pages."""
    back = '<section id="nav"><nav aria-label="Pages"><a href="/">Fleet</a></nav></section>'
    return back + Path(__file__).with_name("runbooks.html").read_text("utf-8")


def places() -> list[Place]:
    """The page, and what its script fetches. It needs no API server, no leader, and never changes."""

    async def page(asked: Asked) -> Told:
        return Told(body=document("Runbooks", sections(), __version__).encode())

    async def fragment(asked: Asked) -> Told:
        body = sections().encode()
        return Told(body=body, etag=hashlib.blake2b(body, digest_size=12).hexdigest())

    return [Place(PATH, page), Place(f"/fragment{PATH}", fragment)]
