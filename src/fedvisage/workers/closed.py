"""A process that reads what a stranger wrote: no network, no other program, no files to write, a bound on memory.

Linux alone can close a process off so without rights of its own: a filter of system calls (seccomp) that the process
puts on itself and cannot take off again.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import resource
import struct
import sys

REFUSED = {
    "x86_64": (0xC000003E, (41, 42, 49, 50, 53, 56, 57, 58, 59, 62, 101, 322, 425, 435)),
    "aarch64": (0xC00000B7, (198, 199, 200, 201, 203, 117, 129, 220, 221, 281, 425, 435)),
}
"""By machine: the kernel's number for it, and its calls that open sockets, begin processes, or reach into others."""

SECONDS = 600
"""Of processor time; the largest checkpoints take one."""

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_NUMBER, _MACHINE = 0, 4
_NO_NEW_PRIVILEGES, _SET_FILTER, _FILTER = 38, 22, 2
_LOW_CALLS = 0x40000000
"""Numbers from here on are x86's other set of calls, which has sockets, too."""
_AT_LEAST = 0x35


class CannotClose(Exception):
    """This system has no way to close a process off."""


def closed_off(memory: int) -> None:
    """Close this process off for good, with so many bytes of memory beyond what it has now."""
    here = _address_space() + memory
    for limit, most in (
        (resource.RLIMIT_AS, here),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, SECONDS),
    ):
        hard = resource.getrlimit(limit)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (bound, bound))
    _filter_calls()


def can_close() -> bool:
    """Tell whether this system has such a filter."""
    return sys.platform == "linux" and platform.machine() in REFUSED


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _filter_calls() -> None:
    if not can_close():
        raise CannotClose(f"{sys.platform} on {platform.machine()} has no filter of system calls")
    machine, refused = REFUSED[platform.machine()]
    code = [_step(_LOAD, _MACHINE), _step(_EQUAL, machine, 1, 0), _step(_RETURN, _KILL), _step(_LOAD, _NUMBER)]
    code += [_step(_AT_LEAST, _LOW_CALLS, 0, 1), _step(_RETURN, _REFUSE)]
    for number in refused:
        code += [_step(_EQUAL, number, 0, 1), _step(_RETURN, _REFUSE)]
    code.append(_step(_RETURN, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
    system = ctypes.CDLL(None, use_errno=True)
    for arguments in ((_NO_NEW_PRIVILEGES, 1, 0, 0, 0), (_SET_FILTER, _FILTER, ctypes.addressof(header), 0, 0)):
        if system.prctl(*(ctypes.c_ulong(one) for one in arguments)) != 0:
            raise CannotClose(f"this system refuses a filter of system calls ({errno.errorcode[ctypes.get_errno()]})")


def _step(operation: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", operation, then, otherwise, value)
