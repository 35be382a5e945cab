"""The two layers on the base: the packages of requirements.lock, and Sentinel with the list of what is in the image."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from scripts.image import sbom
from scripts.image.base import MACHINES, USER, Base, ImageError, compiled, put_libraries
from scripts.image.layers import Layer, Tree

REPO = Path(__file__).resolve().parents[2]
HOME = "opt/sentinel"  # a virtual environment, so that the base's own packages are neither seen nor changed
STATE = "var/lib/sentinel"
NOT_NEEDED = {"numpy"}  # of `sentinel demo`
# Typed objects, 5000 files: Sentinel takes only credentials and addresses from there, and they are loaded when used.
UNUSED = re.compile(r"kubernetes/(aio/)?client/(api|models)/(?!__init__\.py)")
SOURCES = {".c", ".h", ".pxd", ".pxi", ".pyi", ".pyx"}  # of what is compiled, and for type checkers
COMMAND = f"""#!/{HOME}/bin/python
from sentinel.cli.first_process import stand_before

stand_before()

from sentinel.cli import main

raise SystemExit(main())
"""


def packages(base: Base, work: Path, wheels: str) -> Layer:
    """The virtual environment with the packages of the lock. They are left in `work` for who asks what they are."""
    target, tree = work / "packages", Tree()
    lock = work / "requirements.lock"
    lock.write_text(wanted((REPO / "requirements.lock").read_text()))
    shutil.rmtree(target, ignore_errors=True)
    # Tags of manylinux: whatever glibc the base has, since 2.28 is that of the oldest systems that are alive.
    machine = MACHINES.get(base.arch, base.arch)
    tags = [f"--platform=manylinux_2_{minor}_{machine}" for minor in (28, 17)]
    tags += [f"--platform=manylinux2014_{machine}"]
    where = ["--no-index", f"--find-links={wheels}"] if wheels else []
    pip(
        "--no-deps", "--require-hashes", "--only-binary=:all:", f"--python-version={base.version}", *tags, *where,
        f"--target={target}", f"--requirement={lock}",
    )  # fmt: skip
    for path in [path for path in target.rglob("*") if path.is_file()]:
        if path.suffix in SOURCES or UNUSED.match(str(path.relative_to(target))):
            path.unlink()
    _without_place(target)
    compiled(target, site_packages(base), base.version)
    home = os.path.dirname(base.python)
    tree.file(f"{HOME}/pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = false\n".encode())
    for name in ("python", "python3"):
        tree.link(f"{HOME}/bin/{name}", base.python)
    tree.file(f"{HOME}/bin/sentinel", COMMAND.encode(), 0o755)
    if (spy := target / "bin/py-spy").exists():
        tree.file(f"{HOME}/bin/py-spy", spy, 0o755)
    tree.copy(target, site_packages(base), {"bin"})
    if base.libraries is not None:
        put_libraries(tree, target.rglob("*.so*"), work / "libraries", target)
    tree.folder(STATE, owner=USER)
    return tree.layer()


def sentinel(base: Base, work: Path, version: str) -> tuple[Layer, bytes]:
    """Sentinel, and the bill of materials, which lies in the image too."""
    target, tree = work / "sentinel", Tree()
    shutil.rmtree(target, ignore_errors=True)
    pip("--no-deps", "--no-build-isolation", "--no-index", f"--target={target}", str(REPO))
    _without_place(target)
    compiled(target, site_packages(base), base.version)
    tree.copy(target, site_packages(base), {"bin"})
    bill = json.dumps(sbom.bill(base, work / "packages", version), indent=1).encode()
    tree.file(f"{HOME}/sbom.cdx.json", bill)
    return tree.layer(), bill


def _without_place(target: Path) -> None:
    """Nothing is left that says where this checkout lies: scripts of packages begin with its Python's path, and are not
    taken."""
    for noted in target.glob("*.dist-info/direct_url.json"):
        noted.unlink()
    for record in target.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines()
        record.write_text(
            "".join(f"{one}\n" for one in lines if "direct_url" not in one and "bin/" not in one)
        )


def site_packages(base: Base) -> str:
    return f"{HOME}/lib/python{base.version}/site-packages"


def wanted(lock: str) -> str:
    """The lock without what only the demo needs."""
    blocks = re.split(r"\n(?=\S)", lock)
    return "\n".join(block for block in blocks if block.partition("==")[0] not in NOT_NEEDED) + "\n"


def pip(*words: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run([*command, "--no-compile", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageError(f"pip could not install: {done.stderr.strip()[-2000:]}")
