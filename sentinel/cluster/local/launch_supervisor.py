"""Puts a job's supervisor into the background, then ends. Run as `python -I -S launch_supervisor.py JOB_DIR`.

The expensive imports (ctypes for prctl, socket) happen here and are dropped by the exec of
`supervisor.py`, which stays for the life of the job: being a subreaper survives an exec, and so do the
lock and the listening socket. When this returns 0, the socket already takes connections.
Exit code 75: another supervisor of this job is alive.
"""

import ctypes
import fcntl
import os
import socket
import sys

PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
ALREADY_RUNNING = 75
KEPT_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "TZ")


def listen() -> socket.socket:
    """The job's socket in the current directory: its name is relative, so a long path is no problem."""
    try:
        os.unlink("supervisor.sock")
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o077)
    listener.bind("supervisor.sock")
    os.umask(before)
    listener.listen(8)
    return listener


def main(job_dir: str) -> int:
    os.chdir(job_dir)
    lock = os.open("supervisor.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ALREADY_RUNNING
    listener = listen()
    if os.fork():
        return 0
    os.setsid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        os._exit(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        errors = os.open("supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        errors = null
    os.dup2(errors, 2)
    os.dup2(lock, 10)  # by way of high numbers: 3 and 4 may be in use for each other
    os.dup2(listener.fileno(), 11)
    os.dup2(10, 3)
    os.dup2(11, 4)
    os.closerange(5, 65536)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py")
    flags = ["-I", "-S", "-E", "-X", "utf8"]
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    os.execve(sys.executable, [sys.executable, *flags, program, "3", "4", job_dir], kept)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
