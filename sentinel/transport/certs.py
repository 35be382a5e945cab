"""The controller's own certificate authority and serving certificate: made, renewed, published, put in force.

A new authority is published beside the old one first, and signs only when every agent has had time to read
the bundle that has both; the old one stays in the bundle until it ends. (SPIRE prepares and activates its
authorities in the same two steps.) Keys are EC P-256: a handshake then costs the server 0.9 ms and not 2.
"""

import os
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from sentinel.metrics import declared
from sentinel.metrics.registry import Metrics
from sentinel.transport.wire import SERVER_NAME

log = structlog.get_logger(__name__)

DAY_S = 86400.0
LOOK_S = 300.0  # what agents trust is missed by the first that starts
TRIES = 5
# Names as in a Secret of type kubernetes.io/tls, and what only the controller reads.
CERT, KEY, BUNDLE = "tls.crt", "tls.key", "ca.crt"
CA_KEY, NEXT_KEY, NEXT_CERT, NEXT_PUBLISHED = "ca.key", "next-ca.key", "next-ca.crt", "next-ca.published"

Data = Mapping[str, bytes]


class Lifetimes(Struct, frozen=True):
    """Renewal comes when a third of a certificate's time is left."""

    authority_s: float = 730 * DAY_S
    serving_s: float = 30 * DAY_S
    overlap_s: float = 7 * DAY_S  # from publishing a new authority to signing by it
    backdate_s: float = DAY_S  # nodes whose clocks are behind must not wait


class Conflict(Exception):
    """Somebody else has written since."""


class Unusable(Exception):
    """Certificates that people gave. The text says all that is wrong with them."""


class Store(Protocol):
    """One record that several controllers share. Both raise OSError if they cannot."""

    async def get(self) -> tuple[Data, str] | None:
        """The record and its version."""

    async def put(self, data: Data, version: str | None) -> None:
        """Write, if the version is still this one (None: if there is no record). Raises Conflict."""


class _Authority(Struct, frozen=True):
    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def renewed(data: Data, now_s: float, names: tuple[str, ...], lifetimes: Lifetimes) -> dict[str, bytes]:
    """The record as it should be now: equal to `data` if nothing is to be done. Raises ValueError if it is damaged."""
    fresh = dict(data)
    if CA_KEY not in fresh:
        authority = _make_authority(now_s, lifetimes)
        fresh = {BUNDLE: pem(authority.cert), CA_KEY: _key_pem(authority.key)}
    key = _load_key(fresh[CA_KEY])
    bundle = x509.load_pem_x509_certificates(fresh[BUNDLE])
    signing = next((c for c in bundle if _same_key(c, key)), None)
    if signing is None:
        raise ValueError("no certificate fits the authority's key")
    if NEXT_KEY not in fresh and _left(signing, now_s) < 1 / 3:
        following = _make_authority(now_s, lifetimes)
        fresh |= {NEXT_KEY: _key_pem(following.key), NEXT_CERT: pem(following.cert)}
        bundle.insert(0, following.cert)
    published = fresh.get(NEXT_PUBLISHED)
    if published is not None and now_s >= float(published) + lifetimes.overlap_s:
        key = _load_key(fresh[NEXT_KEY])
        signing = x509.load_pem_x509_certificate(fresh[NEXT_CERT])
        fresh[CA_KEY] = fresh[NEXT_KEY]
        for name in (NEXT_KEY, NEXT_CERT, NEXT_PUBLISHED):
            del fresh[name]
    kept = [cert for cert in bundle if cert == signing or ends_s(cert) > now_s]
    if kept != x509.load_pem_x509_certificates(fresh[BUNDLE]):
        fresh[BUNDLE] = b"".join(pem(cert) for cert in kept)
    if not _serves(fresh, signing, now_s, names):
        fresh[CERT], fresh[KEY] = _make_serving(_Authority(signing, key), now_s, names, lifetimes)
    return fresh


def _serves(data: Data, authority: x509.Certificate, now_s: float, names: tuple[str, ...]) -> bool:
    """Whether the serving certificate is good for a while, for these names and by this authority."""
    if CERT not in data or KEY not in data:
        return False
    cert = x509.load_pem_x509_certificate(data[CERT])
    try:
        cert.verify_directly_issued_by(authority)
    except Exception:  # noqa: BLE001 - whatever is wrong with it: a new one is made
        return False
    held = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    wanted = {SERVER_NAME, *names}
    return set(held.get_values_for_type(x509.DNSName)) == wanted and _left(cert, now_s) >= 1 / 3


def _make_authority(now_s: float, lifetimes: Lifetimes) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Sentinel"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"sentinel-ca-{now_s:.0f}"),
        ]
    )
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    cert = (
        _builder(name, name, key, now_s, lifetimes.authority_s, lifetimes)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return _Authority(cert, key)


def _make_serving(
    authority: _Authority, now_s: float, names: tuple[str, ...], lifetimes: Lifetimes
) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    left_s = ends_s(authority.cert) - now_s
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    cert = (
        _builder(name, authority.cert.subject, key, now_s, min(lifetimes.serving_s, left_s), lifetimes)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(n) for n in sorted({SERVER_NAME, *names})]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    return pem(cert), _key_pem(key)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now_s: float,
    life_s: float,
    lifetimes: Lifetimes,
) -> x509.CertificateBuilder:
    now = datetime.fromtimestamp(now_s, UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=lifetimes.backdate_s))
        .not_valid_after(now + timedelta(seconds=life_s))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _left(cert: x509.Certificate, now_s: float) -> float:
    """The share of a certificate's time that is left."""
    return (ends_s(cert) - now_s) / max(ends_s(cert) - cert.not_valid_before_utc.timestamp(), 1.0)


def ends_s(cert: x509.Certificate) -> float:
    """Unix time."""
    return cert.not_valid_after_utc.timestamp()


def _same_key(cert: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    return bool(cert.public_key() == key.public_key())


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an EC key")
    return key


def pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


async def update(store: Store, change: Callable[[Data], Data]) -> Data:
    """What is stored once `change` has nothing more to do to it. Raises OSError, Conflict."""
    for _ in range(TRIES):
        stored = await store.get()
        found, version = stored if stored is not None else ({}, None)
        wanted = change(found)
        if dict(wanted) == dict(found):
            return found
        try:
            await store.put(wanted, version)
        except Conflict:  # the other controller was quicker: what it wrote will do
            continue
        return wanted
    raise Conflict(f"written by others {TRIES} times in a row")


class Keeper(ABC):
    """Keeps a serving certificate in force, and the authorities that agents trust published."""

    look_s: float  # between looks

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._context: ssl.SSLContext | None = None
        self._ends: dict[tuple[str], float] = {}  # ("serving",) and ("authority",) -> Unix time
        self.failures = 0  # to renew

    @abstractmethod
    async def renew(self) -> None:
        """Bring everything to where it should be. Raises OSError (of the store), Conflict, Unusable."""

    def tls(self) -> ssl.SSLContext:
        """For new connections; those that there are go on with the one that they began with."""
        if self._context is None:
            raise RuntimeError("renew() has not succeeded yet")
        return self._context

    @property
    def ends_wall_s(self) -> float:
        """When the serving certificate in force ends."""
        return self._ends["serving",]

    def measure(self, metrics: Metrics) -> None:
        """For a scrape."""
        metrics.replace(declared.CERTIFICATE_FAILURES, {(): self.failures})
        if self._ends:
            metrics.replace(declared.CERTIFICATE_END, self._ends)

    def trouble(self) -> str:
        """What people should do something about; "": nothing."""
        return ""

    async def look(self) -> bool:
        """Renew what is due: every `look_s`. False: it failed, and is to be tried again soon."""
        try:
            await self.renew()
        except (OSError, Conflict, Unusable) as error:
            self.failures += 1
            log.warning("certificates_not_renewed", error=str(error)[:1000])
            return False
        return True


class Certificates(Keeper):
    """Makes them. `publish` sees to it at each look that agents can read the bundle, which somebody may have taken
    away."""

    def __init__(
        self,
        store: Store,
        publish: Callable[[bytes], Awaitable[None]],
        *,
        names: tuple[str, ...] = (),
        lifetimes: Lifetimes = Lifetimes(),  # noqa: B008 - frozen
        now_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(now_s)
        self.look_s = min(LOOK_S, lifetimes.serving_s / 10)
        self._store = store
        self._publish = publish
        self._names = names
        self._lifetimes = lifetimes
        self._data: Data = {}

    async def renew(self) -> None:
        data = await update(self._store, self._renewed)
        if data.get(CERT) != self._data.get(CERT):
            self._context = server_context(data[CERT], data[KEY])
            log.info("serving_certificate_in_force")
        self._data = data
        self._ends = {
            ("serving",): ends_s(x509.load_pem_x509_certificate(data[CERT])),
            ("authority",): max(map(ends_s, x509.load_pem_x509_certificates(data[BUNDLE]))),
        }
        await self._publish(data[BUNDLE])
        if NEXT_KEY in data and NEXT_PUBLISHED not in data:  # the overlap begins when agents can read it
            stamp = f"{self._now_s():.0f}".encode()
            self._data = await update(
                self._store,
                lambda found: (
                    {**found, NEXT_PUBLISHED: found.get(NEXT_PUBLISHED, stamp)}
                    if found.get(NEXT_KEY) == data[NEXT_KEY]
                    else found
                ),
            )

    def _renewed(self, found: Data) -> Data:
        try:
            return renewed(found, self._now_s(), self._names, self._lifetimes)
        except (ValueError, KeyError) as error:
            # Agents trust the new authority when they have read the bundle; until then they spool.
            log.error("certificates_damaged", error=str(error))
            return renewed({}, self._now_s(), self._names, self._lifetimes)


def server_context(chain: bytes, key: bytes) -> ssl.SSLContext:
    """Raises ssl.SSLError. The key goes through anonymous memory, for OpenSSL reads files only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # agents stay connected: nobody resumes
    fd = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, chain + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context
