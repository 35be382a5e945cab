"""What the image begins with: where `sentinel` is the first process of a container, a child does the work.

The kernel gives the first process whatever lost its parent, to wait for, and keeps from it each signal that it has no
handler for. A program that is not made for that collects zombies, and cannot be ended by Ctrl-C.
"""

import contextlib
import os
import signal

OF_THE_PROGRAM = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP}
NOT_PASSED_ON = OF_THE_PROGRAM | {
    signal.SIGCHLD,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGKILL,
    signal.SIGSTOP,
}


def stand_before() -> None:
    """Returns at once where this is not process 1, and in the child where it is. Process 1 passes signals on, waits for
    whatever ends, and ends with the child, by its exit code or by 128 and the signal."""
    if os.getpid() != 1:
        return
    passed_on = signal.valid_signals() - NOT_PASSED_ON
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on | {signal.SIGCHLD, signal.SIGTTOU})
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):  # no terminal, or another session's
            # Ctrl-C is for the child alone: passed on as well it would come twice.
            if os.tcgetpgrp(0) == os.getpgrp():
                os.setpgid(0, 0)
                os.tcsetpgrp(0, os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        number = signal.sigwait(passed_on | {signal.SIGCHLD})
        if number != signal.SIGCHLD:
            os.kill(child, number)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                os._exit(code if code >= 0 else 128 - code)
