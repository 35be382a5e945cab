"""The root of the node around a pod, and around a service of systemd that has mounts of its own."""

import os

from sentinel.checks.proc_scan import in_hosts_pid_namespace


def node_root(procfs: str) -> str:
    """Where a pod that sees its node's processes (hostPID and root) finds the node's files: it stands before each path.
    "": our root is the node's, or it is not to be seen."""
    # Of another container process 1 is just its first one. Where $NODE_NAME is said, it is a node's.
    if not in_hosts_pid_namespace(procfs) and not os.environ.get("NODE_NAME"):
        return ""
    root = os.path.join(procfs, "1/root")
    try:
        ours = os.path.samestat(os.stat(root), os.stat("/")) and not _of_a_unit(procfs)
    except OSError:
        return ""
    return "" if ours else root


def _of_a_unit(procfs: str) -> bool:
    """ProtectSystem=strict and its like: the same files, which we see read-only (systemd.exec(5))."""
    if not os.environ.get("INVOCATION_ID"):
        return False
    own, first = (os.readlink(os.path.join(procfs, pid, "ns/mnt")) for pid in ("self", "1"))
    return own != first
