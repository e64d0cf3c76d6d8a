"""Histories of a simulated world, played against the product's own run.

- World: `clocks`, `bucket` (the object store), `lakefs_files`, `repository`, `servers` with
  `server_answers`, `world`. Its users: `writers` for objects, `versioning` for commits, branches and retention rules,
  `quarantine` for its commands; `other_repository` and `other_writers` surround it.
- Collector: the run that ships, on an engine of plain tables. `collecting` does Dagster's part around the steps,
  `observing` watches the run, `stored_results` reads its files. Collectors are processes that stop between any two
  calls, fail, die and come back: `processes`, with the calls before which they stop, and their `run_requests`.
- Oracles: `oracle` knows who can reach which object, and judges a collector's claims. `exactness` compares an optimized
  run with a clean one. `retention_oracle` knows from a log of heads which commits retention keeps;
  `retention_exactness` knows it to the second.
- Histories as data, made from a seed, played, shortened, many at once: `histories` of clean and of optimized runs,
  `retention_histories`, `playing`, `final_runs` (their end), `decode_cache` (for speed),
  `shortening`, `kinds`, `soak`.
- Seeded bugs: `bug` defines one as a change of shipped functions. Histories or tests of the run find `clean_bugs`,
  `chain_bugs`, `retention_bugs`, `hidden_bugs` and `guard_bugs`; the enumeration of faults finds `fault_bugs`. `bugs`
  lists all.
- Whole runs of each kind in which one call goes wrong: `scenes`, `failing_calls`, `fault_kinds`, `faults`,
  `commands`. `soak` plays every fault.

As in the product, runs differ in the request that opens them (`run_requests.Asked`) and in their plan.
"""
