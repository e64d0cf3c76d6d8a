"""Source files as text: their docstrings, strings that document attributes, and comments."""

import ast
import io
import tokenize
from collections.abc import Iterator


def doc_strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Docstrings, and strings that document an attribute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a module."""
    return tokenize.generate_tokens(io.StringIO(text).readline)
