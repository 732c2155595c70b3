"""A process gives up all but computing: no file, no socket, no other process, so much memory and time.

A list of system calls that are allowed is put into Linux's kernel (seccomp); every other one fails as not permitted.
What is open stays open, such as the pipes to who started the process.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
from collections.abc import Mapping

#: Calls that memory, threads' locks, clocks and open pipes need, by machine: the kernel's number of the machine, and
#: those of read, write, close, fstat, lseek, mmap, mprotect, munmap, mremap, madvise, brk, rt_sigaction, rt_sigprocmask,
#: rt_sigreturn, sigaltstack, futex, clock_gettime, clock_nanosleep, gettimeofday, getpid, gettid, sched_yield,
#: sched_getaffinity, getrandom, getrusage, sysinfo, set_robust_list, membarrier, exit and exit_group.
_ALLOWED: Mapping[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (0, 1, 3, 5, 8, 9, 10, 11, 25, 28, 12, 13, 14, 15, 131, 202, 228, 230, 96, 39, 186, 24, 204, 318, 98, 99, 273,
         324, 60, 231),
    ),
    "aarch64": (
        0xC00000B7,
        (63, 64, 57, 80, 62, 222, 226, 215, 216, 233, 214, 134, 135, 139, 132, 98, 113, 115, 169, 172, 178, 124, 123,
         278, 165, 179, 99, 283, 93, 94),
    ),
}  # fmt: skip
_DEATH_SIGNAL, _NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 1, 38, 22, 2
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_KILL, _ALLOW, _FAIL = 0x80000000, 0x7FFF0000, 0x00050000 | errno.EPERM


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def is_lockable() -> bool:
    """Whether this machine can lock a process."""
    return platform.system() == "Linux" and platform.machine() in _ALLOWED


def lock_process(max_bytes: int, max_seconds: int) -> None:
    """Give up files, network, other processes and signals, for good, and end with the process that started it.

    Args:
        max_bytes: of memory that the process may address.
        max_seconds: of CPU time from its start, after which it is killed.

    Raises:
        OSError: the kernel does not lock it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (max_seconds, max_seconds))
    if not is_lockable():
        raise OSError(errno.ENOSYS, "no list of system calls for this machine")
    machine, calls = _ALLOWED[platform.machine()]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, machine), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    # Each jumps over those behind it, and over the line that fails.
    lines += [(_EQUAL, len(calls) - n, 0, call) for n, call in enumerate(calls)]
    lines += [(_RETURN, 0, 0, _FAIL), (_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(lines), ctypes.addressof(buffer))
    kernel = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    kernel.prctl(_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGKILL), zero, zero, zero)
    if kernel.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), zero, zero, zero) or kernel.prctl(
        _SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(program), zero, zero
    ):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
