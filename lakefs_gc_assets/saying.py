"""How work says how it gets on, and what to be warned of: in lines of text, to whoever started it."""

from collections.abc import Callable

Say = Callable[[str], None]
"""Is told a line."""
