"""Sentinel's own log: one JSON line per event, in a file of bounded size."""

import logging
import logging.handlers
import os
from pathlib import Path

import structlog

MAX_BYTES = 5_000_000


def configure(path: Path | None) -> None:
    """Log events go to `path` (and one older file); None: nowhere. A disk that is full loses log lines only."""
    logger = logging.getLogger("sentinel")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logging.raiseExceptions = False
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    if path is None:
        logger.addHandler(logging.NullHandler())
    else:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = logging.handlers.RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=1, delay=True)
        file.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(file)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=lambda *args: logger,
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
