"""Runs a command on a pseudo-terminal, as for a user who types it."""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CTRL_C = b"\x03"


@dataclass(frozen=True)
class Ended:
    """Terminal output of a command, and its exit status; negative for a signal that killed it."""

    written: str
    status: int

    @property
    def lines(self) -> list[str]:
        """The lines that stay on the screen, without colours and without overwritten progress bars."""
        shown: list[str] = []
        for line in self.written.replace("\r\n", "\n").split("\n"):
            # An erased or restarted line shows its last content.
            last = re.split(r"\r|\x1b\[2K", line)[-1]
            ups = len(re.findall(r"\x1b\[1A", line))
            if ups:
                del shown[len(shown) - ups :]
            shown.append(_CONTROL.sub("", last).rstrip())
        return [line for line in shown if line]


def run(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    interrupt: Callable[[bytes], bool] = lambda written: False,
    seconds: float = 900,
) -> Ended:
    """Runs a command on a terminal of 40 lines and 120 columns until it ends.

    Args:
        interrupt: receives all output so far; when it first returns True, Ctrl-C is typed.
        seconds: maximum duration.

    Raises:
        TimeoutError: the command takes longer.
    """
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(folder)
        os.execvpe(command[0], [*command], dict(environment))  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    written, typed, until = b"", False, time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            if not select.select([terminal], [], [], 0.2)[0]:
                continue
            try:
                part = os.read(terminal, 65536)
            except OSError:
                part = b""
            if not part:
                return Ended(written.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            written += part
            if not typed and interrupt(written):
                typed = True
                os.write(terminal, CTRL_C)
        raise TimeoutError(f"{command} did not end within {seconds:.0f} s: {written[-2000:]!r}")
    finally:
        os.close(terminal)
