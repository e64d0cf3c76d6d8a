"""Histories of a simulated world, played against the product's own functions.

- The world: `clocks`, `bucket` (the object store), `lakefs_files`, `repository`, `servers`, `world`; its users:
  `writers` for objects, `versioning` for commits and branches, `choosing` what they act on.
- The collector, `collection/` in the order of `assets/` on plain rows: `stepping`, `carrying`, `marking`, `collector`,
  `plain`, `frames`; as processes that stop between any two calls, fail, die and come back: `coroutines`, `processes`.
- Who can reach what, and whether what a collector claims is so: `oracle`. Whether an optimized run marks what a clean
  one would: `exactness`.
- Histories as data, made from a seed, played, shortened, many of them: `histories` of clean runs, `chains` of optimized
  ones, `playing`, `remembering` (for speed), `shortening`, `soak`; and what they must show: `bugs`, `chain_bugs`.
- Whole runs of each kind in which one call goes wrong: `filed` (the collector with its frames as files),
  `failing_calls`, `faults`, `fault_bugs`, `faults_soak`.

Runs differ in what they are opened for (`processes.Asked`) and in their plan, as in the product; a run with a bug is a
subclass of `collector.Run`, handed to `playing.play` as `make_run`.
"""
