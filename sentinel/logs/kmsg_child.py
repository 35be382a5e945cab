"""Empties the ring of kernel messages into a pipe, and does nothing else: `python kmsg_child.py RING PIPE`.

Both arguments are descriptors. Whoever writes to its standard input is answered by CAUGHT_UP in the pipe, behind all
that the ring held when it was read. Runs for as long as somebody may read the pipe. Only C modules are imported: this
stays in memory beside training.
"""

import errno
import posix
import select
import sys

RECORD_BYTES = (
    8192  # no record is longer; the kernel refuses a read into less than a record needs with EINVAL
)
TURN_BYTES = 64 << 10  # read between two writes
MOST_BYTES = 16 << 20  # that wait for the pipe; what is more stays in the ring, which counts its losses
GARBLED = b"garbled\n"
CAUGHT_UP = (
    b" caught up\n"  # as a line that tells more of the message before it, which no reader takes for one
)
ASKED = 0


def read_some(ring: int, waiting: bytearray) -> bool:
    """Adds what is there. False: nothing can be read any more."""
    end, refused = min(MOST_BYTES, len(waiting) + TURN_BYTES), 0
    while len(waiting) < end:
        try:
            record = posix.read(ring, RECORD_BYTES)
        except BlockingIOError:
            return True
        except OSError as error:
            refused += 1
            if error.errno == errno.EINVAL and refused < 100:
                waiting += GARBLED
            # EPIPE: records were overwritten; the gap in their numbers tells how many.
            elif error.errno != errno.EPIPE:
                return False
            continue
        if not record:
            return False
        waiting += record
    return True


def serve(ring: int, pipe: int) -> None:
    posix.set_blocking(pipe, False)
    waiting = bytearray()
    waits = select.poll()
    waits.register(ASKED, select.POLLIN)
    reads = True
    while reads or waiting:
        waits.register(pipe, select.POLLOUT if waiting else 0)  # that nobody reads it any more is always told
        if reads and len(waiting) < MOST_BYTES:
            waits.register(ring, select.POLLIN)
        elif ring >= 0:
            waits.register(ring, 0)
        ready = dict(waits.poll())
        if ready.get(pipe, 0) & select.POLLERR:
            return
        if ring in ready and reads:
            reads = read_some(ring, waiting)
        if ASKED in ready and (ring not in ready or not reads) and len(waiting) < MOST_BYTES:
            if not posix.read(ASKED, TURN_BYTES):
                waits.unregister(ASKED)
            waiting += CAUGHT_UP
        if waiting:
            try:
                del waiting[: posix.write(pipe, waiting[:TURN_BYTES])]
            except BlockingIOError:
                pass


if __name__ == "__main__":
    try:
        serve(int(sys.argv[1]), int(sys.argv[2]))
    except BrokenPipeError:
        pass
