"""Secrets that lie in files: a password, the URL of a webhook, the key that signs. Child only."""

import os
import stat


class SecretTrouble(Exception):
    """It cannot be read, or others may read it. Tried again: files get repaired."""


def read_secret(path: str, what: str) -> str:
    """The first line of the file. Raises SecretTrouble."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            # The group may read: that is how a mounted secret arrives.
            if mode & 0o027:
                raise SecretTrouble(f"{path}: mode {mode:04o} lets others in; use 0600 (at most 0640)")
            found = file.readline(4096).rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretTrouble(f"{what} file {path}: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise SecretTrouble(f"{what} file {path}: empty")
    return found
