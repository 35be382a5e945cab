"""CPUs whose frequency governor saves power while training waits for them."""

from collections import Counter
from pathlib import Path

from sentinel.checks.base import Absent, Look, Unknown
from sentinel.core.health import Component, Finding, Severity

WANTED = "performance"


def check(look: Look) -> list[Finding]:
    folder = Path(look.settings.sysfs, "devices/system/cpu/cpufreq")
    governors: Counter[str] = Counter()
    unreadable = ""
    for policy in sorted(folder.glob("policy[0-9]*")):
        try:
            governors[(policy / "scaling_governor").read_text(errors="replace").strip()] += 1
        except OSError as error:
            unreadable = f"{policy.name}/scaling_governor: {error.strerror}"
    if not governors:
        if unreadable:
            raise Unknown(unreadable)
        raise Absent("the CPUs' frequency is not the kernel's to set (a virtual machine, or firmware)")
    others = {name: count for name, count in governors.items() if name != WANTED}
    if not others:
        return []
    told = ", ".join(f"{name} on {count}" for name, count in sorted(others.items()))
    return [
        Finding(
            check="governor",
            component=Component.SYSTEM,
            entity="cpu",
            code="cpu-governor",
            severity=Severity.WARNING,
            action="SET_GOVERNOR",
            summary=f"The CPU frequency governor is not {WANTED}: what feeds the GPUs runs slower",
            evidence=(f"{told} of {governors.total()} frequency domains",),
        )
    ]
