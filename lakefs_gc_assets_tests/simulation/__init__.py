"""Histories of a simulated world, played against the product's own functions.

- The world: `clocks`, `bucket` (the object store), `lakefs_files`, `repository`, `servers` with `listed_commits` and
  what they `told`, `world`; its users: `writers` for objects, `versioning` for commits and branches, `ruling` for
  retention rules, `choosing` what they act on.
- The collector, `collector/` in the order of `defs/` on plain rows: `stepping`, `carrying`, `retaining`, `marking`,
  `collector`, `plain`, `frames`; as processes that stop between any two calls, fail, die and come back: `coroutines`,
  `processes`, what they are `asked`, and the `calls` before which they stop.
- Who can reach what, and whether what a collector claims is so: `oracle`. Whether an optimized run marks what a clean
  one would: `exactness`. What retention keeps, by a log of heads (`heads_log`): `retention_oracle`, and to the second
  `retention_exactness`.
- Histories as data, made from a seed, played, shortened, many of them: `histories` of clean runs, `chains` of optimized
  ones, `retention_histories`, `playing`, `quiet` (how they end), `remembering` (for speed), `shortening`, `kinds`,
  `soak`; and what they must show: `bugs`, `chain_bugs`, `retention_bugs`.
- Whole runs of each kind in which one call goes wrong: `filed` (the collector with its frames as files),
  `failing_calls`, `faults`, `fault_bugs`, `faults_soak`.

Runs differ in what they are opened for (`asked.Asked`) and in their plan, as in the product; a run with a bug is a
subclass of `collector.Run`, handed to `playing.play` as `make_run`.
"""
