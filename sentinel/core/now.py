"""Two clocks, read together. `wall` is the Unix clock and is only ever shown to people; everything else is
CLOCK_BOOTTIME (it never steps, and goes on while the machine sleeps) and is compared only within one boot.
"""

from msgspec import Struct


class Now(Struct, frozen=True, omit_defaults=True):
    """One reading of both clocks, passed into the core."""

    mono_s: float
    wall_s: float
    slept_s: float = 0.0  # of the seconds since boot: the machine slept meanwhile
