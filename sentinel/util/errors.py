"""The two ways in which doing something can fail."""


class TemporaryError(Exception):
    """Try again after `delay_s`."""

    def __init__(self, message: str, delay_s: float = 1.0) -> None:
        super().__init__(message)
        self.delay_s = delay_s


class PermanentError(Exception):
    """Trying again cannot help. `reason` is one CamelCase word that goes into the record."""

    def __init__(self, message: str, reason: str = "Failed") -> None:
        super().__init__(message)
        self.reason = reason
