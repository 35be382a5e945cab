"""The two readers that bench_kmsg measures: `python -m tests.bench.kmsg_subject sentinel|bare [ARGUMENT...]`.

`sentinel` is the whole `sentinel agent`, whose kernel check lets the user facility in: user space cannot write as
the kernel. `bare` opens /dev/kmsg, reads what comes and prints it; at SIGTERM it prints how many lines it lost.
"""

import functools
import os
import select
import signal
import sys


def sentinel(arguments: list[str]) -> int:
    from sentinel.checks.kernel import messages
    from sentinel.cli import main

    messages.check = functools.partial(messages.check, trusted=(0, 1))  # type: ignore[assignment]
    sys.argv = ["sentinel", *arguments]
    return main()


def bare() -> int:
    """Prints `fault ADDRESS` for each line about an Xid 79, and `read N lost M` at the end."""
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(descriptor, 0, os.SEEK_END)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(print(f"read {count} lost {lost}", flush=True)))
    waits = select.poll()
    waits.register(descriptor, select.POLLIN)
    print("ready", flush=True)
    count = lost = 0
    last = -1
    while True:
        waits.poll(1000)
        while True:
            try:
                record = os.read(descriptor, 8192)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            sequence = int(record.split(b",", 2)[1])
            if last >= 0:
                lost += sequence - last - 1
            last = sequence
            if b"NVRM: Xid" in record:
                count += 1
                if b": 79," in record:
                    print("fault", record.partition(b"PCI:")[2][:10].decode(), flush=True)


if __name__ == "__main__":
    sys.exit(sentinel(sys.argv[2:]) if sys.argv[1] == "sentinel" else bare())
