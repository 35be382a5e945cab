"""The highest epoch that this agent has obeyed, on disk: a leader that was replaced commands it no more."""

import os

import structlog

log = structlog.get_logger(__name__)

MAX_EPOCH = 2**62


class EpochFile:
    """`value` never falls. A disk that cannot keep it is logged: the process still knows it."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "epoch")
        self.value = self._read()

    def _read(self) -> int:
        try:
            with open(self._path, encoding="ascii") as file:
                value = int(file.read(32))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            log.warning("epoch_unreadable", path=self._path, error=str(error))
            return 0
        return value if 0 <= value <= MAX_EPOCH else 0

    def raise_to(self, epoch: int) -> bool:
        """Obey `epoch` from now on. False: it is older than one that was obeyed, or not an epoch."""
        if not self.value <= epoch <= MAX_EPOCH:
            return False
        if epoch > self.value:
            self.value = epoch
            try:
                self._write()
            except OSError as error:
                log.warning("epoch_not_kept", path=self._path, error=error.strerror)
        return True

    def _write(self) -> None:
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        fresh = self._path + ".new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{self.value}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(fresh, self._path)
