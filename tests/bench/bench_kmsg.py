"""The kernel log, by the whole `sentinel agent` at the machine's own /dev/kmsg, beside a bare reader in Python.

Latency: lines are written one by one; measured is how much later than the bare reader, which prints a line as soon
as it has read it, the agent says what it found: read, named, folded and ready to be sent. Both print into a pipe.

Flood: 20,000 Xid lines in half a second, and one other fault a second later. Once the lines are of 8 cards, each
with a text of its own; once each is a finding of its own (another card). Lost is what the ring overwrote before it
was read; the bare reader, which does nothing else, meets the same floods alone. Memory is the highest resident set
of the agent. Quoted of GPUd 0.13 on the same floods: 83 % lost, the later fault seen after 237 s.
"""

import itertools
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from tests.bench.harness import Row, at_most, cpu_seconds, process_tree, wait_idle, wait_until

ROOT = Path(__file__).parents[2]
FLOOD = 20_000
FLOOD_S = 0.5
BURST = 8  # records of one open file: printk_devkmsg=ratelimit lets about ten pass
WITHIN_S = 60.0
MIB = float(1 << 20)


_numbers = itertools.count(
    int(time.time() * 7) % 60_000 * 256
)  # what an earlier run wrote is still in the ring


def new_address() -> str:
    """Domain and bus of a card that no line has named yet."""
    number = next(_numbers)
    return f"{number >> 8 & 0xFFFF:04x}:{number & 255:02x}"


def write(lines: list[bytes]) -> int:
    """Up to BURST lines into the ring. Returns CLOCK_MONOTONIC in ns before the first one."""
    descriptor = os.open("/dev/kmsg", os.O_WRONLY)
    begun_ns = time.monotonic_ns()
    for line in lines:
        os.write(descriptor, line)
    os.close(descriptor)
    return begun_ns


def fault(address: str) -> bytes:
    return f"<6>NVRM: Xid (PCI:{address}:00): 79, pid='<unknown>', GPU has fallen off the bus.\n".encode()


def flood_lines(distinct: bool) -> list[bytes]:
    """Xid 31 as the driver prints it: on one of 8 cards, or each on a card of its own."""
    cards = [new_address() if distinct else f"0000:{0x18 + n % 8:02x}" for n in range(FLOOD)]
    return [
        f"<6>NVRM: Xid (PCI:{card}:00): 31, pid=4711, name=python3, Ch {n:08x}, intr 00000000. MMU Fault\n".encode()
        for n, card in enumerate(cards)
    ]


class Reader:
    """One of the two programs, and the times at which it told of faults."""

    def __init__(self, what: str, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.what = folder, what
        arguments: list[str] = []
        if what == "sentinel":
            (folder / "settings.yaml").write_text(
                "apiVersion: sentinel.dev/v1alpha1\nkind: Settings\nlisten: 127.0.0.1:0\n"
            )
            arguments = ["agent", "--settings", str(folder / "settings.yaml")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.kmsg_subject", what, *arguments],
            cwd=ROOT,
            env={**os.environ, "SENTINEL_STATE_DIR": str(folder / "state")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        self.descriptor = self.process.stdout.fileno()
        os.set_blocking(self.descriptor, False)
        self.output = b""

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    def read(self) -> None:
        try:
            self.output += os.read(self.descriptor, 1 << 20)
        except BlockingIOError:
            pass

    def tells_of(self, address: str) -> bool:
        self.read()
        told = (address.encode() + b":00.0 XID 79:", b"fault " + address.encode())
        return any(words in self.output for words in told)

    def lost(self) -> float:
        """Records that the ring overwrote before the agent read them, as its metrics say."""
        presence = json.loads(next(self.folder.glob("state/**/sentinel.json")).read_text())
        with urllib.request.urlopen(presence["url"] + "/metrics", timeout=WITHIN_S) as answer:
            text: str = answer.read().decode()
        name = 'sentinel_kernel_log_records_total{fate="lost"} '
        return float(next(line for line in text.splitlines() if line.startswith(name)).split()[1])


def seen_after_ms(readers: list[Reader]) -> list[float]:
    """Writes a fault and waits until each of them has told of it."""
    address = new_address()
    begun_ns = write([fault(address)])
    waits = select.poll()
    for reader in readers:
        waits.register(reader.descriptor, select.POLLIN)
    times: dict[Reader, float] = {}
    while len(times) < len(readers):
        if time.monotonic_ns() - begun_ns > WITHIN_S * 1e9:
            raise TimeoutError(f"a line of {address} was not told of within {WITHIN_S:g} s")
        waits.poll(1000)
        now_ns = time.monotonic_ns()
        for reader in readers:
            if reader not in times and reader.tells_of(address):
                times[reader] = (now_ns - begun_ns) / 1e6
                reader.output = b""
    return [times[reader] for reader in readers]


def ready(reader: Reader) -> None:
    word = b"watches this node" if reader.what == "sentinel" else b"ready"
    wait_until(lambda: reader.read() or word in reader.output, WITHIN_S, f"{reader.what} to be ready")  # type: ignore[func-returns-value]
    wait_idle(reader.process.pid, f"the first look of {reader.what} at everything else")
    seen_after_ms([reader])


def latency(folder: Path, count: int) -> list[Row]:
    with Reader("sentinel", folder / "a") as agent, Reader("bare", folder / "b") as bare:
        ready(agent)
        ready(bare)
        pairs = []
        for _ in range(count):
            pairs.append(seen_after_ms([agent, bare]))
            time.sleep(0.02)
    later = statistics.median(ours - theirs for ours, theirs in pairs)
    alone = statistics.median(theirs for _, theirs in pairs)
    return [
        at_most(
            "finding ready later than the bare reader",
            3.0,
            later,
            "ms",
            ("bare reader after the write", alone),
        )
    ]


def flood(reader: Reader, lines: list[bytes]) -> tuple[float, float]:
    """Seconds that the writer took, and ms until the later fault was told of."""
    begun_s = time.monotonic()
    for start in range(0, len(lines), BURST):
        write(lines[start : start + BURST])
        ahead_s = FLOOD_S * start / len(lines) - (time.monotonic() - begun_s)
        if ahead_s > 0.002:
            time.sleep(ahead_s)
    took_s = time.monotonic() - begun_s
    wait_idle(reader.process.pid, f"{reader.what} after the flood")
    reader.output = b""
    return took_s, seen_after_ms([reader])[0]


def of_sentinel(folder: Path, distinct: bool) -> dict[str, float]:
    with Reader("sentinel", folder) as agent:
        ready(agent)
        before_s = cpu_seconds(process_tree(agent.process.pid))
        took_s, later_ms = flood(agent, flood_lines(distinct))
        lost = agent.lost()
        wait_idle(agent.process.pid, "the agent that saves its state")
        cpu_s = cpu_seconds(process_tree(agent.process.pid)) - before_s
        status = Path(f"/proc/{agent.process.pid}/status").read_text()
    peak_mib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    return {"lost": lost, "later": later_ms, "cpu": cpu_s, "peak": peak_mib, "took": took_s}


def of_bare(folder: Path, distinct: bool) -> dict[str, float]:
    with Reader("bare", folder) as bare:
        ready(bare)
        took_s, later_ms = flood(bare, flood_lines(distinct))
        bare.process.send_signal(signal.SIGTERM)
        bare.process.wait(timeout=WITHIN_S)
        bare.read()
    return {"lost": float(bare.output.split()[-1]), "later": later_ms, "took": took_s}


def run(quick: bool = False) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="sentinel-bench-") as name:
        folder = Path(name)
        rows += latency(folder, 40 if quick else 200)
        for kind, distinct in (("of 8 cards", False), ("all distinct", True)):
            ours, bares = [], []
            for number in range(2 if quick else 10):
                ours.append(of_sentinel(folder / f"{kind}-{number}", distinct))
                bares.append(of_bare(folder / f"{kind}-bare-{number}", distinct))

            def middle(of: list[dict[str, float]], key: str) -> float:
                return statistics.median(one[key] for one in of)

            alone = ("bare reader", middle(bares, "lost"))
            rows.append(at_most(f"flood {kind}: lines lost", 0.0, middle(ours, "lost"), "lines", alone))
            alone = ("bare reader", middle(bares, "later"))
            rows.append(at_most(f"flood {kind}: later fault", 100.0, middle(ours, "later"), "ms", alone))
            rows.append(at_most(f"flood {kind}: CPU", 3.0, middle(ours, "cpu"), "s"))
            rows.append(at_most(f"flood {kind}: peak memory", 75.0, middle(ours, "peak"), "MiB"))
    return rows
