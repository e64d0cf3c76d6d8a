"""`make model`: visits every state of every scope, and removes the rules in turn."""

import sys
import time

from lakefs_gc_assets_tests.model.checking import check
from lakefs_gc_assets_tests.model.scopes import COLLECTION, METADATA, Model, some


def main() -> None:
    """Prints every scope's states and every mutant's violation; exits with status 1 if any result is wrong."""
    sys.exit(min(sum(map(_check, (COLLECTION, METADATA))), 1))


def _check(model: Model) -> int:
    """Number of wrong results of a model."""
    wrong, never = 0, set[frozenset[str]]()
    for name, scope in model.scopes.items():
        began = time.monotonic()
        checked = check(model, name, {})
        never.add(checked.never)
        print(f"{name}: {checked.states:,} states, depth {checked.depth}, {time.monotonic() - began:.0f} s", flush=True)
        if checked.violated:
            wrong += 1
            print(f"  {checked.violated} is violated: {' '.join(checked.trace)}")
        for denied in scope.reaches:
            if check(model, name, {}, (denied,)).violated is None:
                wrong += 1
                print(f"  {denied} holds, so the scope shows nothing")
    for name, mutant in {**model.mutants, **model.limits}.items():
        checked = check(model, mutant.scope, {"Off": some(name), **mutant.constants}, (mutant.invariant,))
        never.add(checked.never)
        print(f"without {name}: {checked.violated}, after {len(checked.trace)} actions", flush=True)
        wrong += checked.violated != mutant.invariant
    if nobody := frozenset.intersection(*never):
        wrong += 1
        print(f"nowhere are these actions taken: {', '.join(sorted(nobody))}")
    return wrong


if __name__ == "__main__":
    main()
