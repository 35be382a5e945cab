"""Certificates that people give in files, as cert-manager writes them: put in force, their authorities published.

New files count without a restart; bad ones leave in force what was. Agents read the authorities in a bundle that
reaches them late: it keeps the old ones beside the new, and a certificate that only new ones vouch for waits until
agents can have read it.
"""

import contextlib
import re
import ssl
import time
from collections.abc import Callable, Sequence

import structlog
from cryptography import x509

from sentinel.settings import CertificateFiles
from sentinel.transport.certs import (
    BUNDLE,
    DAY_S,
    Data,
    Keeper,
    Store,
    Unusable,
    ends_s,
    pem,
    update,
)
from sentinel.transport.credentials import client_context
from sentinel.transport.given_files import (
    DAMAGED,
    MAX_AUTHORITIES,
    Given,
    distrust,
    judged,
    named,
    shown,
)

log = structlog.get_logger(__name__)

LOOK_S = 20.0
# A kubelet brings a ConfigMap to its pods within its sync period and the life of its cache, 90 s by default
# (kubernetes.io, ConfigMaps: "Mounted ConfigMaps are updated automatically").
SETTLE_S = 120.0
# cert-manager renews with a third of the life left: no trouble until that has failed for a while.
TROUBLE_SHARE, TROUBLE_S = 1 / 4, 7 * DAY_S
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----")


class GivenCertificates(Keeper):
    """`store` has the bundle that agents read."""

    look_s = LOOK_S

    def __init__(
        self,
        files: CertificateFiles,
        store: Store,
        *,
        settle_s: float = SETTLE_S,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(now_s)
        self._files, self._store, self._settle_s = files, store, settle_s
        self._given: Given | None = None  # the newest good files
        self._in_force: Given | None = None
        self._waits: x509.Certificate | None = None  # for agents to know its authority
        self._problem = ""
        self._since: dict[x509.Certificate, float] = {}  # of what is published: when that was seen first

    async def renew(self) -> None:
        now_s = self._now_s()
        try:
            self._given, self._problem = judged(self._files, now_s), ""
        except Unusable as error:
            self._problem = str(error)
        if self._given is None:
            raise Unusable(self._problem)
        await self._publish(self._given.authorities, now_s)
        self._put_in_force(self._given, now_s)
        if self._problem:
            raise Unusable(self._problem)

    async def _publish(self, authorities: Sequence[x509.Certificate], now_s: float) -> None:
        def both(found: Data) -> Data:
            bundle = united(authorities, found.get(BUNDLE, b""), now_s)
            return {**found, BUNDLE: b"".join(map(pem, bundle))}

        published = parsed((await update(self._store, both))[BUNDLE])
        # What there is at the first look has no certificate from before that could serve meanwhile.
        first_s = now_s if self._since else float("-inf")
        self._since = {one: self._since.get(one, first_s) for one in published}

    def _put_in_force(self, given: Given, now_s: float) -> None:
        old = self._in_force
        if old is None or (given.chain, given.key) != (old.chain, old.key):
            settled = [one for one, since_s in self._since.items() if now_s >= since_s + self._settle_s]
            if old is not None and ends_s(old.own) > now_s and distrust(given.context, settled):
                if self._waits != given.own:
                    self._waits = given.own
                    log.info("serving_certificate_waits", certificate=named(given.own), wait_s=self._settle_s)
                return
            self._in_force, self._context = given, given.context
            log.info("serving_certificate_in_force", certificate=named(given.own))
        self._waits = None
        self._ends = {
            ("serving",): ends_s(given.own),
            ("authority",): max(map(ends_s, given.authorities)),
        }

    def trouble(self) -> str:
        if self._in_force is None:
            return ""
        own = self._in_force.own
        until = shown(own.not_valid_after_utc)
        if self._problem:
            return f"certificates that cannot serve were given; that in force ends {until}: {self._problem}"
        life_s = ends_s(own) - own.not_valid_before_utc.timestamp()
        if ends_s(own) - self._now_s() < min(life_s * TROUBLE_SHARE, TROUBLE_S):
            return f"the certificate that agents know it by ends {until}, and no newer one was given"
        return ""


# ---------------------------------------------------------------- the bundle


def united(own: Sequence[x509.Certificate], published: bytes, now_s: float) -> list[x509.Certificate]:
    """What agents are to trust: what was given, and what they were told before and has not ended, the longest-lasting
    of it. In one order whoever makes it, so that two controllers do not write in turn."""
    others = {one for one in parsed(published) if ends_s(one) > now_s} - set(own)
    kept = sorted(others, key=_order)[: max(0, MAX_AUTHORITIES - len(set(own)))]
    return sorted({*own, *kept}, key=_order)


def _order(cert: x509.Certificate) -> tuple[float, bytes]:
    return -ends_s(cert), pem(cert)


def parsed(text: bytes) -> list[x509.Certificate]:
    """The certificates in it that agents' OpenSSL can read: one that it cannot would spoil the others for them."""
    found = []
    for block in _CERTIFICATE.findall(text):
        with contextlib.suppress(ssl.SSLError, *DAMAGED):
            cert = x509.load_pem_x509_certificate(block)
            ends_s(cert)
            client_context().load_verify_locations(cadata=pem(cert).decode())
            found.append(cert)
    return found
