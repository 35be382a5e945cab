"""The root of the node around a pod."""

import os

from sentinel.checks.proc_scan import in_hosts_pid_namespace

HIDDEN = "the node's files are not seen: that needs CAP_SYS_PTRACE, and no AppArmor or SELinux against it"


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


def is_hidden(procfs: str) -> bool:
    """Is our root a container's, and may we not look at the node's? Then no file that we see tells of the node."""
    try:
        os.stat(os.path.join(procfs, "1/root"))
    except PermissionError:
        return _mounted_as_root(procfs, "1") != _mounted_as_root(procfs, "self")
    except OSError:
        pass
    return False


def _mounted_as_root(procfs: str, process: str) -> list[str]:
    """Device and folder, of mountinfo, which everybody may read; but for a container under SELinux."""
    try:
        with open(os.path.join(procfs, process, "mountinfo"), errors="replace") as file:
            mounts = [line.split(" ")[2:5] for line in file]
    except OSError:
        return []
    return next((mount for mount in reversed(mounts) if mount[2] == "/"), [])
