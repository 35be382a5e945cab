"""How many files this process may have open: each agent's connection is one, and without any no request goes out."""

import resource

from msgspec import structs

from sentinel.transport.limits import Limits

# What agents leave to others: the API server's connections (40), people's and scrapers' (64), mails, programs, logs,
# and connections that were taken from the kernel and are not counted yet, or not closed (some turns of `accepts`).
OTHERS = 512


def room_for(limits: Limits) -> int:
    """`raise_limit` for all the connections of `limits`."""
    return raise_limit(limits.connections + OTHERS)


def raise_limit(wanted: int) -> int:
    """To `wanted`, as far as the hard limit lets this process -> what is the limit now.

    containerd 2 gives a container 1024 and a hard limit of 524288 (`LimitNOFILE` of its unit).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return wanted if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):  # the kernel's own limit (fs.nr_open) is less than the hard one
        return soft
    return most


def fitting(limits: Limits, files: int) -> Limits:
    """`limits` as a process has room for them that may open so many files."""
    others = min(OTHERS, files // 2)
    return structs.replace(
        limits,
        connections=min(limits.connections, files - others),
        accepts=max(1, min(limits.accepts, others // 8)),
    )


def too_few(limits: Limits, files: int, nodes: int) -> str:
    """In a sentence, what becomes of so many nodes' agents under limits that fit these files; "": all have room."""
    if nodes <= limits.connections:
        return ""
    return (
        f"at most {limits.connections} agents are served at once, for {nodes} nodes: this process may open {files} "
        "files (ulimit -Hn; in a pod LimitNOFILE of its node's container runtime)"
    )
