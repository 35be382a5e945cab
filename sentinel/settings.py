"""Administrators' settings after validation, in base units. `Settings()` serves a machine with no file.

The file that people write is YAML; its schema stands in `sentinel.config.settings_schema`, and only
`sentinel.config` imports pydantic. The resident part of Sentinel sees only these structs.
"""

import os
from pathlib import Path
from typing import Any

from msgspec import Struct

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class Summary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One mail a day to the administrators of a cluster."""

    at: str = ""  # "08:00"; "": none
    days: tuple[str, ...] = ()  # of WEEKDAYS; none: every day
    timezone: str = "UTC"  # of the IANA database


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
    per_hour: int = 20  # to one address; half as they come, the others as digests
    outbox: str = ""
    admins: tuple[str, ...] = ()
    summary: Summary = Summary()


class Webhook(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program that is told what mails tell, by POST. One of `url` and `url_file` is set."""

    name: str
    url: str = ""
    url_file: str = ""  # where the URL itself is a secret, as Slack's is
    format: str = "json"  # or "slack"
    secret_file: str = ""  # of the key that signs a `json` body
    ca_file: str = ""
    about: tuple[str, ...] = ("jobs", "nodes")
    timeout_s: float = 10.0


class Caps(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What owners may ask at most. `sentinel.core.people.caps` holds a policy to them."""

    max_resumes: int = 100
    max_restarts: int = 100
    graceful_stop_s: float = 3600.0
    checkpoint_timeout_s: float = 3600.0
    debug_hold_s: float = 86_400.0
    reset_after_min_s: float = 3600.0  # `resetAfter` may not be shorter


class OwnerRule(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whom the mails of jobs without an owner go to. What is not written fits every job; the first that fits counts."""

    namespace: str = ""
    match_labels: dict[str, str] = {}
    emails: tuple[str, ...]


class DiskThresholds(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Free space or inodes under these are findings. Shares are 0..1 of the file system."""

    warn_free_share: float = 0.10
    min_free_share: float = 0.02
    min_free_bytes: int = 500_000_000


class MountThresholds(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Thresholds of one mount point, which counts as needed by jobs. None: as for all."""

    path: str
    warn_free_share: float | None = None
    min_free_share: float | None = None
    min_free_bytes: int | None = None


class Disk(DiskThresholds, frozen=True, kw_only=True, omit_defaults=True):
    mounts: tuple[MountThresholds, ...] = ()
    ignore: tuple[str, ...] = ()  # mount points, or patterns of them
    probe_writes: tuple[str, ...] = ()  # folders


class CardLimits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """For accelerators that are asked through `cnmon`, `npu-smi` or `amd-smi`."""

    max_temperature_celsius: float = 95.0  # where the card does not tell its own limit


class GpuThresholds(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of a GPU is told or acted upon. Everything else goes by the card's own limits or NVIDIA's word."""

    throttled_s: float = 360.0  # of the last 10 minutes
    corrected_ecc_per_hour: int = 1000
    pcie_replays_per_minute: float = 8.0  # as DCGM's health watch
    orphan_bytes: int = 15 << 20  # what a context without data takes


class Network(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When InfiniBand, RoCE and Ethernet ports are findings."""

    interfaces: tuple[str, ...] = ()  # that training uses, besides those that are found to be used
    port_down_s: float = 240.0  # down so long isolates the node
    flaps: int = 3  # so many within flap_window_s
    flap_window_s: float = 12 * 3600.0
    settle_s: float = 600.0  # after a boot or a reload of the driver links come and go
    errors_per_minute: dict[
        str, float
    ] = {}  # counter -> more than this is a warning; else rules/network.toml


class OwnCheck(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A program that an administrator wrote, run as one more check."""

    name: str
    command: tuple[str, ...]  # an executable by its path, and its arguments
    interval_s: float = 60.0
    timeout_s: float = 10.0
    max_severity: str = "degraded"
    component: str = "system"


class ShapeMatch(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which nodes have a shape: regular expressions that must be found. All that are written must be."""

    hostname: str = ""
    gpu: str = ""  # in the model of a card ("NVIDIA H100 80GB HBM3") or its PCI ids ("10de:2330")


class Shape(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The hardware that a node is expected to have. None: not set, and said to be so; nothing is judged by it.

    `sentinel.checks.shape` finds the one of this node, and has the words for results.
    """

    name: str = ""  # in the manifest
    match: ShapeMatch = ShapeMatch()
    source: str = ""  # "manifest"; "confirmed" or "learnt" (not confirmed): found on this node; "": not set
    gpus: int | None = None
    gpu_name: str | None = None
    driver: str | None = None
    vbios: str | None = None
    ib_ports: int | None = None  # InfiniBand and RoCE ports that are up
    ib_rate_gbps: float | None = None  # of each of them
    nics: tuple[str, ...] | None = None  # Ethernet interfaces
    memory_gib: float | None = None  # MemTotal of the kernel, which is less than what is built in
    cpus: int | None = None  # logical ones
    mounts: tuple[str, ...] | None = None
    modules: tuple[str, ...] | None = None
    services: tuple[str, ...] | None = None  # systemd units, like "kubelet.service"


class ControllerLink(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the agent of a node reports to. No address: it serves its page and nothing else."""

    addresses: tuple[str, ...] = ()  # HOST:PORT of each controller, or of a headless service
    node: str = ""  # name in the cluster; default: $NODE_NAME, else the host name
    token_file: str = "/var/run/secrets/sentinel/token"  # projected, for the audience "sentinel-controller"
    ca_file: str = "/var/run/sentinel/ca/ca.crt"  # certificates of the controllers' authority
    api_server: str = ""  # HOST:PORT that is asked when no controller answers; default: as a pod is told
    api_server_ca_file: str = "/var/run/secrets/sentinel/api-server-ca.crt"


class CertificateFiles(Struct, frozen=True, kw_only=True):
    """What the controllers serve agents with, in place of certificates of their own making. PEM."""

    cert_file: str  # the chain
    key_file: str
    ca_file: str  # the authorities


class EndedJobs(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long the records and logs of jobs that have ended on this machine are kept: both hold."""

    keep_for_s: float = 30 * 86_400.0
    at_most: int = 1000


class Settings(Struct, frozen=True, kw_only=True, omit_defaults=True):
    state_dir: str = (
        ""  # default: $SENTINEL_STATE_DIR, else $XDG_STATE_HOME/sentinel, else ~/.local/state/sentinel
    )
    listen: str = "127.0.0.1:9810"  # page and metrics; "" for none; a taken port falls back to a free one
    mail: Mail = Mail()
    caps: Caps = Caps()
    ended_jobs: EndedJobs = EndedJobs()
    webhooks: tuple[Webhook, ...] = ()
    owners: tuple[OwnerRule, ...] = ()
    disk: Disk = Disk()
    cards: CardLimits = CardLimits()
    gpu: GpuThresholds = GpuThresholds()
    network: Network = Network()
    own_checks: tuple[OwnCheck, ...] = ()
    skip_checks: tuple[str, ...] = ()
    controller: ControllerLink = ControllerLink()
    certificates: CertificateFiles | None = None
    # What is written of core.fleet.settings.FleetSettings, by its names: only the controller makes them of it.
    fleet: dict[str, Any] = {}
    shapes: tuple[Shape, ...] = ()  # the manifest: the first that matches is this node's
    shape: Shape = (
        Shape()
    )  # this node's: not written by people but found by `sentinel.checks.shape.with_shape`
    rules_dir: str = ""  # extra *.toml of log rules and timing formats
    kernel_log: str = "/dev/kmsg"
    sysfs: str = "/sys"
    procfs: str = "/proc"
    pod_logs: str = "/var/log/pods"  # names the pods of this node
    recording_bytes: int = 64 << 20  # what the controller of a cluster decided from, kept on disk; 0: nothing
    page_url: str = ""  # base of links in mails and alerts; default of mails: the listen address
    dashboard_url: str = ""  # of a Grafana; "": mails lead to no dashboard

    @property
    def state_path(self) -> Path:
        chosen = self.state_dir or os.environ.get("SENTINEL_STATE_DIR", "")
        if chosen:
            return Path(chosen).expanduser().absolute()
        base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return Path(base).expanduser().absolute() / "sentinel"
