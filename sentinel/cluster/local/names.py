"""Names of jobs on one machine. Each is a folder in the state directory, a label, and a part of other names."""

import re

from sentinel.util.errors import PermanentError

MOST = 63  # as names on Kubernetes, which allow less: no capitals and no '_'
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", re.ASCII)


def check_job_name(name: str) -> str:
    """`name` if it can name a job (and its folder), else PermanentError that says what is allowed and would do."""
    if len(name) <= MOST and _NAME.fullmatch(name):
        return name
    shown = name if len(name) <= 80 else name[:77] + "..."
    legal = legal_name(name)
    raise PermanentError(
        f"{shown!r} cannot name a job: expected 1 to {MOST} of A-Z, a-z, 0-9, '-', '_' and '.', "
        "with a letter or digit first and last" + (f"; {legal!r} would do" if legal else ""),
        reason="BadName",
    )


def legal_name(text: str) -> str:
    """The name that is nearest to `text`; "" where nothing of it can stand in one."""
    base = re.sub(r"[^-A-Za-z0-9_.]+", "-", text, flags=re.ASCII).strip("-_.")
    return base[:MOST].rstrip("-_.")
