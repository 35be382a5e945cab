"""A Slurm of one node on this machine, with Debian's programs (`slurm-wlm`): srun starts ranks below its daemons."""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gate.left import MARK
from tests.gate.rights import needs_root
from tests.waits import until

CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=all Nodes=ALL Default=YES OverSubscribe=YES:16
"""


@pytest.fixture(scope="session")
@needs_root
def slurm() -> Iterator[Path]:
    """Its slurm.conf: SLURM_CONF names it to srun."""
    for program in ("srun", "slurmctld", "slurmd", "munged"):
        assert shutil.which(program), f"no {program}: apt-get install slurm-wlm"
    # munged accepts no folder that others may write, and a socket's path may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/run"))
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    conf = folder / "slurm.conf"
    with socket.socket() as one, socket.socket() as two:
        ports = []
        for held in (one, two):
            held.bind(("127.0.0.1", 0))
            ports.append(held.getsockname()[1])
    conf.write_text(CONF.format(host=socket.gethostname(), ports=ports, folder=folder))
    munge = ("munged", "--foreground", f"--socket={folder}/munge.socket", f"--key-file={key}")
    files = (f"--{name}-file={folder}/munged.{name}" for name in ("pid", "log", "seed"))
    commands = ((*munge, *files), ("slurmctld", "-D"), ("slurmd", "-D"))
    log, env = folder / "log", {**os.environ, "SLURM_CONF": str(conf)}
    env.pop(MARK, None)  # the first test that asks for it started it, and it is not that test's
    running = []
    try:
        for command in commands:
            with open(log, "ab") as file:
                running.append(subprocess.Popen(command, stdout=file, stderr=file, env=env, cwd="/"))
            if command is commands[0]:
                until((folder / "munge.socket").exists, lambda: log.read_text(errors="replace"))
        until(lambda: states(env) == "idle", lambda: log.read_text(errors="replace"))
        yield conf
    finally:
        for one in reversed(running):
            one.terminate()
        try:
            for one in running:
                one.wait(60.0)
        finally:
            for one in running:
                one.kill()
                one.wait()
            shutil.rmtree(folder)


def states(env: dict[str, str]) -> str:
    done = subprocess.run(["sinfo", "-h", "-o", "%t"], env=env, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()
