"""`python -m tests.rig.operators [NAME ...]`: builds operators, one after the other; without a name all of them."""

import sys

from tests.rig.operators.table import OPERATORS
from tests.rig.toolchain import CannotBuild


def main(names: list[str]) -> int:
    known = {operator.name: operator for operator in OPERATORS}
    if unknown := [name for name in names if name not in known]:
        print(f"no operator {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    try:
        for name in names or known:
            known[name].binaries().build()
    except CannotBuild as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
