"""The wrapper that holds containers, as `deploy/` ships it."""

from pathlib import Path

import yaml

MANIFEST = Path(__file__).parents[2] / "deploy/optional/hold.yaml"


def hold_script(folder: Path) -> Path:
    """The file that a pod mounts."""
    path = folder / "hold"
    path.write_text(yaml.safe_load(MANIFEST.read_text())["data"]["hold"])
    path.chmod(0o555)
    return path
