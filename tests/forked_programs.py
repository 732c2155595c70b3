"""Programs in forks of this process, which has imported what they need: processes of their own, without a start of Python."""

from __future__ import annotations

import gc
import os
import sys
import traceback

from crashes import fault_environment

from dpflow import fault_points


class ForkedProgram:
    """A program that runs beside this process.

    Args:
        program: its text.
        arguments: what it sees as its command line's.
        fault: the point of `dpflow.fault_points` at which it is killed.
    """

    def __init__(self, program: str, *arguments: str, fault: str | None = None) -> None:
        armed = fault_environment(fault)["DPFLOW_FAULT"] if fault else ""
        read, write = os.pipe()
        self._output, self._process = read, os.fork()
        if self._process == 0:
            self._run(program, arguments, armed, write)
        os.close(write)

    def wait(self) -> tuple[int, str]:
        """Its exit code, and what it printed."""
        with open(self._output, encoding="utf-8") as output:
            text = output.read()
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1]), text

    @staticmethod
    def _run(program: str, arguments: tuple[str, ...], armed: str, write: int) -> None:
        code = 1
        try:
            gc.freeze()  # what this process leaves is no garbage of the program
            sys.argv[:], fault_points.armed = ["-c", *arguments], armed
            with open(write, "w", encoding="utf-8") as sys.stdout:
                exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)


def run_forked(program: str, *arguments: str, fault: str | None = None) -> int:
    """The exit code of a program that has ended."""
    return ForkedProgram(program, *arguments, fault=fault).wait()[0]
