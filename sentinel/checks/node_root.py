"""The root of the node around a pod, and around a service of systemd that has mounts of its own."""

import os

from sentinel.checks.proc_scan import in_hosts_pid_namespace

HIDDEN = "the node's files are not seen: that needs CAP_SYS_PTRACE, and no AppArmor or SELinux against it"


def node_root(procfs: str) -> str:
    """Where a pod that sees its node's processes (hostPID) finds the node's files: it stands before each path. It
    needs CAP_SYS_PTRACE, see `is_hidden`. "": our root is the node's, or that one is not to be seen and nobody says
    that we are to look: a job in a container with its machine's processes (Apptainer, enroot) sees what it has."""
    # Of another container process 1 is just its first one. Where $NODE_NAME is said, it is a node's.
    if not in_hosts_pid_namespace(procfs) and not os.environ.get("NODE_NAME"):
        return ""
    root = os.path.join(procfs, "1/root")
    try:
        ours = os.path.samestat(os.stat(root), os.stat("/")) and not _of_a_unit(procfs)
        return "" if ours else root
    except PermissionError:
        if not os.environ.get("NODE_NAME"):
            return ""
        return "" if _mounted_as_root(procfs, "1") == _mounted_as_root(procfs, "self") else root
    except OSError:
        return ""


def is_hidden(root: str) -> bool:
    """May we not look at the node with this root? Then no file that we see tells of it."""
    return root != "" and not os.path.exists(root)


def _of_a_unit(procfs: str) -> bool:
    """ProtectSystem=strict and its like: the same files, which we see read-only (systemd.exec(5))."""
    if not os.environ.get("INVOCATION_ID"):
        return False
    own, first = (os.readlink(os.path.join(procfs, pid, "ns/mnt")) for pid in ("self", "1"))
    return own != first


def _mounted_as_root(procfs: str, process: str) -> list[str]:
    """Device and folder, of mountinfo, which everybody may read; but for a container under SELinux."""
    try:
        with open(os.path.join(procfs, process, "mountinfo"), errors="replace") as file:
            mounts = [line.split(" ")[2:5] for line in file]
    except OSError:
        return []
    return next((mount for mount in reversed(mounts) if mount[2] == "/"), [])
