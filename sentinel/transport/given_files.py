"""Files with a certificate that people give: read, and judged as agents would."""

import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from msgspec import Struct, structs

from sentinel.settings import CertificateFiles
from sentinel.transport.certs import Unusable, ends_s, pem, server_context
from sentinel.transport.credentials import client_context
from sentinel.transport.wire import SERVER_NAME

T = TypeVar("T")
MAX_AUTHORITIES = 16
MAX_BYTES = 1 << 20  # of a file: a Secret has no more
READS = 3
# What cryptography says.
DAMAGED = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension, x509.InvalidVersion)
EXPECTED = {
    "cert_file": "a chain in PEM, the controllers' own certificate first",
    "key_file": "an RSA or EC key in PEM, without a passphrase",
    "ca_file": f"1 to {MAX_AUTHORITIES} certificates of authorities in PEM",
}
NAMES = {"cert_file": "certFile", "key_file": "keyFile", "ca_file": "caFile"}
NOT_YET, ENDED, OTHER_NAME = 9, 10, 62  # of OpenSSL (x509_vfy.h): judged of the own certificate before
_KEY_BLOCK = re.compile(rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.+?-----END \1PRIVATE KEY-----", re.DOTALL)


class Given(Struct, frozen=True):
    """Files that were found good."""

    chain: bytes
    key: bytes
    own: x509.Certificate
    authorities: list[x509.Certificate]
    context: ssl.SSLContext


class _Key(Struct, frozen=True):
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
    text: bytes  # PEM, and nothing else


class Doubt(Struct, frozen=True):
    """Why an agent refuses a server: in words, and as OpenSSL's code of a certificate, 0 if it is of something else."""

    text: str
    code: int = 0


class _Judge:
    """Notes what is wrong, file by file."""

    def __init__(self, files: CertificateFiles) -> None:
        self._paths: dict[str, str] = structs.asdict(files)
        self._texts = _read(self._paths)
        self.problems: list[str] = []

    def wrong(self, file: str, found: str, expected: str) -> None:
        self.problems.append(
            f"certificates.{NAMES[file]} {self._paths[file]}: found {found}, expected {expected}"
        )

    def made(self, file: str, make: Callable[[bytes], T]) -> T | None:
        text = self._texts[file]
        try:
            if isinstance(text, bytes):
                return make(text)
            self.wrong(file, f"no file that can be read ({text.strerror})", EXPECTED[file])
        except DAMAGED as error:
            self.wrong(file, str(error), EXPECTED[file])
        return None

    def served(self, own: x509.Certificate, chain: bytes, key: _Key) -> ssl.SSLContext | None:
        if key.key.public_key() != own.public_key():
            self.wrong("key_file", "another key", f"that of {named(own)}, the first in certFile")
            return None
        try:
            return server_context(chain, key.text)
        except ssl.SSLError as error:
            self.wrong("cert_file", f"what OpenSSL refuses to serve with ({error.reason})", "what it takes")
            return None


def judged(files: CertificateFiles, now_s: float) -> Given:
    """Raises Unusable with all that is wrong with them."""
    judge = _Judge(files)
    chain = judge.made("cert_file", _chain)
    key = judge.made("key_file", _key)
    authorities = judge.made("ca_file", _authorities)
    if chain is not None:
        own, text = chain[0], b"".join(map(pem, chain))
        of_own = [*_of_own(own, now_s)]
        for found, expected in of_own:
            judge.wrong("cert_file", found, expected)
        context = None if key is None else judge.served(own, text, key)
        if context is not None and authorities is not None:
            doubt = distrust(context, authorities)
            if doubt is not None and not (of_own and doubt.code in (NOT_YET, ENDED, OTHER_NAME)):
                judge.wrong(
                    "ca_file", f"what makes agents refuse {named(own)} ({doubt.text})", "its authority"
                )
            if key is not None and not judge.problems:
                return Given(text, key.text, own, authorities, context)
    raise Unusable("; ".join(judge.problems))


def distrust(server: ssl.SSLContext, authorities: Sequence[x509.Certificate]) -> Doubt | None:
    """Why an agent that trusts these would not speak to such a server: by its own TLS, in memory."""
    if not authorities:
        return Doubt("no authority")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        trust = client_context()
        trust.load_verify_locations(cadata=b"".join(map(pem, authorities)).decode())
        agent = trust.wrap_bio(back, there, server_hostname=SERVER_NAME)
        controller = server.wrap_bio(there, back, server_side=True)
        for end in (agent, controller, agent):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        return Doubt(error.verify_message, error.verify_code)
    except ssl.SSLError as error:
        return Doubt(str(error.reason))
    return None


def named(cert: x509.Certificate) -> str:
    subject = cert.subject.rfc4514_string() or "the certificate without a subject"
    return f"{subject} (serial {cert.serial_number:x})"


def shown(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M} UTC"


# ---------------------------------------------------------------- one file


def _read(paths: dict[str, str]) -> dict[str, bytes | OSError]:
    """All of one writing: until two looks in a row find the same."""
    found = {name: _text(path) for name, path in paths.items()}
    for _ in range(READS):
        again = {name: _text(path) for name, path in paths.items()}
        if again == found:
            break
        found = again
    return found


def _text(path: str) -> bytes | OSError:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        return error


def _chain(text: bytes) -> list[x509.Certificate]:
    if b"-----BEGIN CERTIFICATE-----" not in text:
        raise ValueError("no certificate in PEM")
    try:
        chain = x509.load_pem_x509_certificates(text)
        for cert in chain:
            cert.public_key(), ends_s(cert), cert.extensions  # each is parsed when it is asked for
    except DAMAGED as error:
        raise ValueError(f"a damaged certificate ({error})") from None
    return chain


def _authorities(text: bytes) -> list[x509.Certificate]:
    found = [*dict.fromkeys(_chain(text))]
    if len(found) > MAX_AUTHORITIES:
        raise ValueError(f"{len(found)} certificates")
    return found


def _key(text: bytes) -> _Key:
    block = _KEY_BLOCK.search(text)
    if block is None:
        raise ValueError("no private key in PEM")
    try:
        # The handshake proves it; the long proof of its primes would hold the loop up for 20 ms.
        key = serialization.load_pem_private_key(block[0], None, unsafe_skip_rsa_key_validation=True)
    except TypeError:
        raise ValueError("a key with a passphrase") from None
    except DAMAGED:
        raise ValueError("a damaged key") from None
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise ValueError("a key of another kind")
    return _Key(key, block[0])


def _of_own(cert: x509.Certificate, now_s: float) -> Iterator[tuple[str, str]]:
    """What was found, what was expected."""
    try:
        held = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        names = held.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        names = []
    if SERVER_NAME not in names:
        some = ", ".join(names[:5]) or "none"
        yield f"a certificate whose DNS names are: {some}", f"{SERVER_NAME} among them, which agents ask for"
    if now_s < cert.not_valid_before_utc.timestamp():
        yield f"one that begins {shown(cert.not_valid_before_utc)}", "one that counts now"
    if now_s >= ends_s(cert):
        yield f"one that ended {shown(cert.not_valid_after_utc)}", "one that counts now"
