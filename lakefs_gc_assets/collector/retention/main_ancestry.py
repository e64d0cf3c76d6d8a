"""Compiled walks along parents: each commit is visited once, however long a history is.

Commits are positions; the main parent of a commit without parents is -1. All functions share this file because what
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


@compiled
def raise_dates(parents: Array, offsets: Array, dates: Array, proved: Array, now: Array) -> int:
    """Raises the date of each commit to what is proved of it and of its parents, parents first.

    What a parent says of its own date counts for its children too, unless it lies in the future: nobody made it then.

    Args:
        parents: positions of all parents, those of each commit one after the other; -1 for one that is not known.
        offsets: where the parents of a commit begin; one longer than there are commits.
        dates: second and nanosecond of each commit as it says itself, shape (commits, 2); raised in place.
        proved: the same of what is known not to be later than the commit; used up.
        now: second and nanosecond of the present.
    Returns:
        How many commits were visited: fewer than there are where parents go in a circle.
    """
    count = len(dates)
    begins = np.zeros(count + 1, np.int64)
    waits = np.zeros(count, np.int64)
    for commit in range(count):
        for at in range(offsets[commit], offsets[commit + 1]):
            if parents[at] >= 0:
                begins[parents[at] + 1] += 1
                waits[commit] += 1
    for commit in range(count):
        begins[commit + 1] += begins[commit]
    children = np.empty(begins[count], np.int64)
    filled = begins[:-1].copy()
    ready = np.empty(count, np.int64)
    last = 0
    for commit in range(count):
        for at in range(offsets[commit], offsets[commit + 1]):
            parent = parents[at]
            if parent >= 0:
                children[filled[parent]] = commit
                filled[parent] += 1
        if waits[commit] == 0:
            ready[last] = commit
            last += 1
    visited = 0
    while visited < last:
        commit = ready[visited]
        visited += 1
        second, nano = dates[commit, 0], dates[commit, 1]
        if proved[commit, 0] > second or (proved[commit, 0] == second and proved[commit, 1] > nano):
            dates[commit, 0], dates[commit, 1] = proved[commit, 0], proved[commit, 1]
        elif second < now[0] or (second == now[0] and nano <= now[1]):
            proved[commit, 0], proved[commit, 1] = second, nano
        second, nano = proved[commit, 0], proved[commit, 1]
        for at in range(begins[commit], begins[commit + 1]):
            child = children[at]
            if second > proved[child, 0] or (second == proved[child, 0] and nano > proved[child, 1]):
                proved[child, 0], proved[child, 1] = second, nano
            waits[child] -= 1
            if waits[child] == 0:
                ready[last] = child
                last += 1
    return visited
