"""Compiled walks along main parents: each commit is visited once, however long a history is.

Commits are positions; the main parent of a commit without parents is -1. Both functions share this file because what
numba keeps on disk counts as old only when this file changes (`lakefs.formats.compilation`).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lakefs_gc_assets.lakefs.formats.compilation import compiled

Array = npt.NDArray[Any]


@compiled
def spread(main_parents: Array, longest: Array, start: Array) -> int:
    """Hands the longest retention of the walks through each commit on to its main parent, children first.

    `longest` (seconds, -1 for none) and `start` (which walk it is) hold what begins at each commit, and in the end what
    goes through it. Returns how many commits were visited: fewer than there are where parents go in a circle.
    """
    count = len(main_parents)
    children = np.zeros(count, np.int64)
    for commit in range(count):
        if main_parents[commit] >= 0:
            children[main_parents[commit]] += 1
    ready = np.empty(count, np.int64)
    last = 0
    for commit in range(count):
        if children[commit] == 0:
            ready[last] = commit
            last += 1
    visited = 0
    while visited < last:
        commit = ready[visited]
        visited += 1
        parent = main_parents[commit]
        if parent < 0:
            continue
        if longest[commit] > longest[parent]:
            longest[parent] = longest[commit]
            start[parent] = start[commit]
        children[parent] -= 1
        if children[parent] == 0:
            ready[last] = parent
            last += 1
    return visited


@compiled
def mark_kept(
    main_parents: Array, seconds: Array, nanos: Array, head: int, from_second: int, from_nano: int, kept: Array
) -> int:
    """Marks in `kept` what the walk from one branch head keeps: the head, and main parents of commits after a moment.

    Returns how many they are; what was marked before stays marked.
    """
    count = 1
    commit = head
    kept[commit] = True
    while main_parents[commit] >= 0:
        if seconds[commit] > from_second or (seconds[commit] == from_second and nanos[commit] > from_nano):
            count += 1
            kept[main_parents[commit]] = True
        commit = main_parents[commit]
    return count
