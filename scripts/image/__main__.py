"""The container image that deploy/ names, without a builder or a registry: `make image`.

An image is layers and a description of them; both are made here. The lowest layers are those of a base with a
Python, as `docker save`, `podman save` or `skopeo copy` write it, or else this machine's own Python with the libraries
that it needs. On them lie the packages of requirements.lock (hashes checked), and Sentinel. The same inputs give the
same image. What comes out is an OCI layout in a tar that also has Docker's manifest: `docker load`, `podman load`,
`ctr -n k8s.io images import`, `skopeo copy oci-archive:...` and `crane push` take it.
"""

import argparse
import os
import sys
from pathlib import Path

from scripts.image.archive import NAME, make
from scripts.image.base import ImageError
from scripts.image.contents import REPO


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.image", description="Make Sentinel's container image."
    )
    default = Path(os.path.relpath(REPO / "build/sentinel-image.tar"))
    parser.add_argument(
        "archive", type=Path, nargs="?", default=default, help="default: build/sentinel-image.tar"
    )
    parser.add_argument("--base", type=Path, help="image archive with Python (default: this machine's own)")
    parser.add_argument(
        "--arch", default="", choices=("amd64", "arm64"), help="of the base (default: this machine's)"
    )
    parser.add_argument(
        "--wheels", default="", metavar="DIR", help="folder of wheels, instead of pip's index"
    )
    parser.add_argument("--name", default=NAME, help=f"default: that of deploy/, {NAME}")
    parser.add_argument(
        "--root", type=Path, metavar="DIR", help="put its files into DIR, in place of an archive"
    )
    args = parser.parse_args(argv)
    if args.arch and not args.base:
        parser.error("--arch is that of a --base")
    try:
        image = make(base=args.base, arch=args.arch, wheels=args.wheels, say=print)
        if args.root:
            image.unpack(args.root)
        else:
            image.write(args.name, args.archive)
            bill = args.archive.with_suffix(".cdx.json")
            bill.write_bytes(image.bill)
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    print(image.sizes())
    if not args.root:
        print(f"{args.archive}: {args.archive.stat().st_size / 1e6:.0f} MB; {bill}: what is in it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
