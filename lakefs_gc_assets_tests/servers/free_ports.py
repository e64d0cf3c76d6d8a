"""Ports for servers that tests start as programs of their own."""

import random
import socket

_CHOSEN_FROM = range(20_000, 32_000)
"""Below the ports that systems hand out unasked: one of those may be some client's before the program listens on it."""


def free_port() -> int:
    """A port of this machine that nobody listens on, and that nobody is given who names none."""
    while True:
        port = random.SystemRandom().choice(_CHOSEN_FROM)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
