"""Histories of a simulated world, played against the product's own functions.

- The world: `clocks`, `bucket` (the object store), `lakefs_files`, `repository`, `servers`, `world`; its users:
  `writers` for objects, `versioning` for commits and branches, `choosing` what they act on.
- The collector, `collection/` in the order of `assets/` on plain rows: `stepping`, `marking`, `collector`, `plain`,
  `frames`; as processes that stop between any two calls, fail, die and come back: `coroutines`, `processes`.
- Who can reach what, and whether what a collector claims is so: `oracle`.
- Histories as data, made from a seed, played, shortened, many of them: `histories`, `playing`, `remembering` (for
  speed), `shortening`, `soak`; and the `bugs` that they must show.

Another kind of run is another subclass of `collector.Run`, handed to `playing.play` as `make_run`: its settings come
from `processes.settings`, its episodes go to `histories`, what it promises to `oracle`.
"""
