"""GPUs that left the PCI bus since the first look of this boot."""

from sentinel.checks.base import Absent, Look
from sentinel.checks.gpus import Gpu, inventory
from sentinel.core.model import Component, Finding, Severity


def check(look: Look) -> list[Finding]:
    present = inventory(look.settings.sysfs)
    expected: dict[str, str] = {**look.kept.get("saved", {}), **{gpu.pci: gpu.device for gpu in present}}
    look.kept["saved"] = expected
    if not expected:
        raise Absent("no NVIDIA GPU on the PCI bus")
    here = {gpu.pci for gpu in present}
    return [
        Finding(
            check="gpu-pci",
            component=Component.GPU,
            entity=Gpu(pci, device).entity,
            code="gpu-vanished",
            severity=Severity.FATAL,
            action="RESTART_BM",
            summary="The GPU was on the PCI bus and is no longer",
            evidence=(
                f"{look.settings.sysfs}/bus/pci/devices/{pci} is gone; {len(here)} of {len(expected)} GPUs are left",
            ),
        )
        for pci, device in sorted(expected.items())
        if pci not in here
    ]
