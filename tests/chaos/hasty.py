"""`sentinel WORDS` that calls a node silent after seconds; settings allow no less than half a minute."""

import sys
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from sentinel.core.fleet import settings as fleet_settings

SILENT_S = 6.0
_written = fleet_settings.fleet_settings


def _hasty(written: Mapping[str, Any]) -> fleet_settings.FleetSettings:
    return structs.replace(_written(written), lease_s=SILENT_S, agent_silent_s=SILENT_S)


if __name__ == "__main__":
    fleet_settings.fleet_settings = _hasty  # before the controller takes it from there
    from sentinel.cli import main

    sys.exit(main())
