"""Histories of a simulated world, played against the product's own run.

- World: `clocks`, `bucket` (the object store), `lakefs_files`, `repository`, `servers`, `world`. Its users are
  `writers`; `other_repository` surrounds it.
- Collector: the run that ships, on an engine of plain tables. `collecting` does Dagster's part around the steps and
  watches the run, `stored_results` reads its files. Collectors and the commands of quarantine are `processes` that stop
  between any two calls, fail, die and come back; `run_requests` start them.
- Oracles: `oracle` knows who can reach which object, and judges a collector's claims. `retention_oracle` knows from a
  log of heads which commits retention keeps. `run_oracles` compare an optimized run with a clean one, and the kept
  commits with the required ones, to the second. They also know when a run must refuse to delete.
- Histories as data, made from a seed, played, shortened, many at once: `histories` of clean and of optimized runs,
  `retention_histories`, `surroundings`, `playing`, `decode_cache` (for speed), `soak`.
- Seeded bugs: `bug` defines one as a change of shipped functions. Histories or tests of the run find `clean_bugs`,
  `flow_bugs` and `guard_bugs`. `bugs` lists all, and the kinds of histories.
- Whole runs of each kind in which one call goes wrong, with the bugs that this shows: `scenes`, `failing_calls`,
  `fault_kinds`, `faults`. In `damaged_files` a file of an earlier run is damaged. `soak` plays every fault.

As in the product, runs differ in the request that opens them (`run_requests.Asked`) and in their plan.
"""
