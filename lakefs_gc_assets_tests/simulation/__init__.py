"""Histories of a simulated world, played against the product's own run.

- The world: `clocks`, `bucket` (the object store), `lakefs_files`, `repository`, `servers` with `listed_commits` and
  what they `told`, `world`; its users: `writers` for objects, `versioning` for commits and branches, `rule_changes` for
  retention rules; `operations` choose what they act on.
- The collector is the run that ships, on an engine of plain tables: `collecting` does what Dagster does around its
  steps, `observing` watches it, `stored_results` reads its files; as processes that stop between any two calls, fail,
  die and come back: `coroutines`, `processes`, their `run_requests`, and the `calls` before which they stop.
- Who can reach what, and whether what a collector claims is so: `oracle`. Whether an optimized run marks what a clean
  one would: `exactness`. What retention keeps, by a log of heads (`heads_log`): `retention_oracle`, and to the second
  `retention_exactness`.
- Histories as data, made from a seed, played, shortened, many of them: `histories` of clean runs, `chains` of optimized
  ones, `retention_histories`, `playing`, `final_runs` (their end), `decode_cache` (for speed), `shortening`, `kinds`,
  `soak`.
- What must be found: `bug` says what a seeded bug is, a change of shipped functions; `clean_bugs`, `chain_bugs`,
  `retention_bugs` and `guard_bugs` are shown by histories or by tests of the run, `fault_bugs` by the enumeration of
  faults; `bugs` lists all.
- Whole runs of each kind in which one call goes wrong: `scenes`, `failing_calls`, `fault_kinds`, `faults`,
  `fault_expectations`, `commands`, `faults_soak`.

Runs differ in what they are opened for (`run_requests.Asked`) and in their plan, as in the product.
"""
