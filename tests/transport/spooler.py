"""Fills a spool in a process of its own, to be killed in the middle: prints each number when it is kept."""

import sys

from sentinel.transport.spool import Kind, Spool

if __name__ == "__main__":
    spool = Spool(sys.argv[1], "boot-1")
    print("session", spool.session, flush=True)
    while True:
        kind = Kind.EVENT if spool.last % 3 else Kind.PROGRESS
        number = spool.append(kind, b"record %d " % (spool.last + 1) * 20)
        print(number, flush=True)
