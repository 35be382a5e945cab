"""The root of the node around a pod."""

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
        return "" if os.path.samestat(os.stat(root), os.stat("/")) else root
    except OSError:
        return ""
