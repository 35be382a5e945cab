"""The image's bill of materials, for scanners: CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/).

Packages from PyPI by their metadata, Python, and each library of this machine by the Debian package that brought it.
It holds no time and no random number: the same image has the same bill.
"""

import hashlib
import platform
import re
import shutil
import subprocess
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from scripts.image.base import Base, libraries

Object = dict[str, Any]
EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")  # SPDX, as PEP 639 wants it


def bill(base: Base, packages: Path, version: str) -> Object:
    """Of the image on this base, with what pip has installed in the folder `packages`."""
    parts = [*_of_the_base(base, packages), *(_package(folder) for folder in packages.glob("*.dist-info"))]
    itself = {"type": "application", "bom-ref": "sentinel", "name": "sentinel-gpu", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**itself, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": sorted(parts, key=lambda part: part["bom-ref"]),
        "dependencies": [{"ref": "sentinel", "dependsOn": sorted(part["bom-ref"] for part in parts)}],
    }


def _package(folder: Path) -> Object:
    told = HeaderParser().parsestr((folder / "METADATA").read_text(errors="replace"))
    name, version = re.sub(r"[-_.]+", "-", told["Name"]).lower(), told["Version"]
    licence = told["License-Expression"] or (told["License"] or "").strip().partition("\n")[0]
    if not licence:
        kinds = [line.rpartition(" :: ")[2] for line in told.get_all("Classifier", []) if "License" in line]
        licence = ", ".join(kinds)
    return _component("library", name, version, f"pkg:pypi/{name}@{version}", licence)


def _component(kind: str, name: str, version: str, purl: str, licence: str = "") -> Object:
    made: Object = {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if EXPRESSION.fullmatch(licence) and " " in licence:
        made["licenses"] = [{"expression": licence}]
    elif licence:
        made["licenses"] = [{"license": {"name": licence}}]
    return made


def _of_the_base(base: Base, packages: Path) -> list[Object]:
    if base.libraries is None:
        layers = ",".join(layer.diff_id for layer in base.layers)
        return [{"type": "container", "bom-ref": "base", "name": "base", "version": layers}]
    found: dict[str, Object] = {}
    of_packages = (path for _, path in libraries(packages.rglob("*.so*"), packages))
    for path in {*base.libraries, *of_packages}:
        part = _of_debian(path, base.arch) or _file(path)
        found[part["bom-ref"]] = part
    version = platform.python_version()
    return [_component("application", "python", version, f"pkg:generic/python@{version}"), *found.values()]


def _of_debian(path: Path, arch: str) -> Object | None:
    """The installed package that a file is of. None: of none, or this is no Debian."""
    if shutil.which("dpkg-query") is None:
        return None
    places = (
        {path, Path("/", *path.parts[2:])} if path.parts[1] == "usr" else {path}
    )  # before /lib was a link
    for place in sorted(places):
        asked = ["dpkg-query", "-S", str(place)]
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        if name := said.partition(": ")[0]:
            asked = ["dpkg-query", "-W", "-f=${Package} ${Version}\n", name]
            said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
            package, _, version = said.splitlines()[0].partition(" ")
            system = platform.freedesktop_os_release()
            where = f"arch={arch}&distro={system['ID']}-{system.get('VERSION_ID', 'sid')}"
            purl = f"pkg:deb/{system['ID']}/{package}@{version.replace(':', '%3A')}?{where}"
            return _component("library", package, version, purl)
    return None


def _file(path: Path) -> Object:
    value = hashlib.sha256(path.read_bytes()).hexdigest()
    made = {"type": "file", "bom-ref": f"{path.name}@{value[:16]}", "name": path.name}
    return {**made, "hashes": [{"alg": "SHA-256", "content": value}]}
