"""Administrators' settings after validation, in base units. `Settings()` serves a machine with no file.

The file that people write is YAML; its schema stands in `sentinel.config.schema`, which is the only
place that imports pydantic. The resident part of Sentinel sees only these structs.
"""

import os
from pathlib import Path

from msgspec import Struct


class Mail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """No host: mails are written as .eml files into `outbox` (default: STATE_DIR/outbox)."""

    host: str = ""
    port: int = 0  # 0: 587 with starttls, 465 with tls, 25 with none
    tls: str = "starttls"  # or "tls" (implicit), "none"
    ca_file: str = ""
    username: str = ""
    password_file: str = ""
    sender: str = ""  # default: sentinel@HOSTNAME
    timeout_s: float = 30.0
    per_hour: int = 20  # to one address; more become one digest
    outbox: str = ""
    admins: tuple[str, ...] = ()


class Caps(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What owners may ask at most."""

    max_resumes: int = 100
    max_restarts: int = 100
    graceful_stop_s: float = 3600.0
    reset_after_min_s: float = 3600.0  # `resetAfter` may not be shorter


class DiskThresholds(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Free space or inodes under these are findings. Shares are 0..1 of the file system."""

    warn_free_share: float = 0.10
    min_free_share: float = 0.02
    min_free_bytes: int = 500_000_000


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    state_dir: str = (
        ""  # default: $SENTINEL_STATE_DIR, else $XDG_STATE_HOME/sentinel, else ~/.local/state/sentinel
    )
    listen: str = "127.0.0.1:9810"  # page and metrics; "" for none; a taken port falls back to a free one
    mail: Mail = Mail()
    caps: Caps = Caps()
    disk: DiskThresholds = DiskThresholds()
    rules_dir: str = ""  # extra *.toml of log rules and timing formats
    kernel_log: str = "/dev/kmsg"
    sysfs: str = "/sys"
    procfs: str = "/proc"
    page_url: str = ""  # base of links in mails; default: the listen address

    @property
    def state_path(self) -> Path:
        chosen = self.state_dir or os.environ.get("SENTINEL_STATE_DIR", "")
        if chosen:
            return Path(chosen).expanduser().absolute()
        base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return Path(base).expanduser().absolute() / "sentinel"
