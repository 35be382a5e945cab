"""Names of objects from names of records."""

import hashlib
import re

_FIT = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", re.ASCII)
MOST = 200  # of 253: room for what others append


def object_name(text: str) -> str:
    """An RFC 1123 name: `text` where it is one, else what is left of it and a digest, so that no two become one."""
    if (
        _FIT.fullmatch(text)
        and len(text) <= MOST
        and ".." not in text
        and "-." not in text
        and ".-" not in text
    ):
        return text
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: MOST - 11].strip("-")
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:10]
    return f"{plain}-{digest}" if plain else digest
