"""What an agent shows and what it trusts: files that others replace while it runs."""

import os
import ssl
import time

TOKEN_AGAIN_S = 60.0  # the kubelet writes a new token when 80 % of the old one's time are over
MAX_TOKEN_BYTES = 16 << 10


class CredentialError(Exception):
    """A file is missing or of no use. The text says which; it repeats nothing of a token."""


def client_context() -> ssl.SSLContext:
    """Of an agent, which trusts nobody yet. An authority need not be a root: organisations give lower ones too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


class Trust:
    """TLS by a bundle of the controller's authorities in a file, read again when the file is another one."""

    def __init__(self, bundle: str) -> None:
        self._bundle = bundle
        self._seen: tuple[int, int, int] | None = None
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Raises CredentialError if there is no usable bundle."""
        try:
            stat = os.stat(self._bundle)
            seen = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if self._context is None or seen != self._seen:
                context = client_context()
                context.load_verify_locations(self._bundle)
                self._context, self._seen = context, seen
        except (OSError, ssl.SSLError) as error:
            raise CredentialError(f"no certificate authority in {self._bundle}: {error}") from None
        return self._context


class TokenFile:
    """A projected service-account token."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._shown = ""
        self._read_s = 0.0

    def read(self) -> str:
        """The token as it is now. Raises CredentialError."""
        try:
            with open(self._path, encoding="ascii") as file:
                token = file.read(MAX_TOKEN_BYTES).strip()
        except (OSError, ValueError) as error:
            said = error.strerror if isinstance(error, OSError) else "not ASCII"
            raise CredentialError(f"no token in {self._path}: {said}") from None
        if not token or not token.isprintable() or " " in token:
            raise CredentialError(f"no token in {self._path}")
        self._shown, self._read_s = token, time.monotonic()
        return token

    def changed(self) -> str | None:
        """The token, if another one stands there than was shown. Looks once a minute."""
        if time.monotonic() - self._read_s < TOKEN_AGAIN_S:
            return None
        shown = self._shown
        self._read_s = time.monotonic()
        try:
            token = self.read()
        except CredentialError:
            return None
        return token if token != shown else None
