"""Ports for servers that tests start as separate programs."""

import random
import socket

_CHOSEN_FROM = range(20_000, 32_000)
"""Below the range that systems assign on their own: a client could get such a port before the program listens on it."""


def free_port() -> int:
    """A port of this machine that is free, and that systems do not assign on their own."""
    while True:
        port = random.SystemRandom().choice(_CHOSEN_FROM)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
