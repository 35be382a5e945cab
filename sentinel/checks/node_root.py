"""The root of the node around a pod."""

import os


def node_root(procfs: str) -> str:
    """Where a pod that sees its node's processes (hostPID and root) finds the node's files: it stands before each path.
    "": our root is the node's, or it is not to be seen."""
    root = os.path.join(procfs, "1/root")
    try:
        return "" if os.path.samestat(os.stat(root), os.stat("/")) else root
    except OSError:
        return ""
