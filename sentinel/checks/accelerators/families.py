"""Accelerators other than NVIDIA's: one row each. A new family is a row here and a file `NAME.py` beside it."""

from collections.abc import Mapping

from msgspec import Struct

from sentinel.checks.base import Check
from sentinel.core.health import Component, Severity

ACCELERATOR, DISPLAY, CONTROLLER_3D = "0x1200", "0x0380", "0x0302"  # PCI classes without a screen


class Family(Struct, frozen=True, kw_only=True):
    """How the cards of one maker are found and asked. `NAME.py` has the parser."""

    name: str
    noun: str  # of a card, in findings: "MLU 0000:39:00.0"
    vendor: str  # PCI
    classes: tuple[str, ...]  # PCI classes of cards (boards of the same maker have other uses too)
    devices: str  # its files below /dev, as glob(3) has it
    tool: str
    folders: tuple[str, ...]  # where its packages put it, if that is not on PATH
    asks: str  # command lines, for people
    permission: str
    health: Mapping[str, Severity | None]  # the tool's words; None is healthy; any other word is a warning
    proof: str

    @property
    def check(self) -> str:
        return f"cards-{self.name}"

    @property
    def row(self) -> Check:
        return Check(
            name=self.check,
            component=Component.GPU,
            module=f"sentinel.checks.accelerators.{self.name}",
            interval_s=60.0,  # these tools take up to a second of CPU for each look
            deadline_s=40.0,
            needs=f"{self.asks}; {self.permission}; {self.proof}",
        )


FAMILIES: tuple[Family, ...] = (
    Family(
        name="cambricon",
        noun="MLU",
        vendor="0xcabc",
        classes=(ACCELERATOR,),
        devices="cambricon_*",
        tool="cnmon",
        folders=("/usr/local/neuware/bin",),
        asks="`cnmon`, `cnmon info`",
        permission="read and write permission on /dev/cambricon_*",
        health={"good": None},
        proof="untested on hardware (parsed: captured tables of 4.20 and 5.10); of links only PCIe is read",
    ),
    Family(
        name="ascend",
        noun="NPU",
        vendor="0x19e5",
        classes=(ACCELERATOR,),
        devices="davinci*",
        tool="npu-smi",
        folders=("/usr/local/sbin", "/usr/local/bin", "/usr/local/Ascend/driver/tools"),
        asks="`npu-smi info`, `npu-smi info -t ecc -i ID`",
        permission="root, or the group HwHiAiUser",
        health={
            "ok": None,
            "warning": Severity.WARNING,
            "alarm": Severity.DEGRADED,
            "critical": Severity.FATAL,
            "unknown": Severity.DEGRADED,  # not started, or does not answer
        },
        proof="untested on hardware (parsed: captured tables of 22.0 to 25.5); of links only PCIe is read",
    ),
    Family(
        name="amd",
        noun="GPU",
        vendor="0x1002",
        classes=(ACCELERATOR, DISPLAY, CONTROLLER_3D),
        devices="kfd",
        tool="amd-smi",
        folders=("/opt/rocm/bin",),
        asks="`amd-smi metric|static|topology --json`, else `rocm-smi -a --showmeminfo vram --json`",
        permission="the groups render and video",
        health={},  # it has no such word
        proof="untested on hardware (parsed: captured JSON of both layouts)",
    ),
)


def family(name: str) -> Family:
    return next(row for row in FAMILIES if row.name == name)
