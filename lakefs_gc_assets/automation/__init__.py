"""What starts runs: a person, a schedule, or the report of the run before. One function opens each of them."""

from lakefs_gc_assets.automation.opening import OpenedRun, approval_config, open_run, run_config

__all__ = ["OpenedRun", "approval_config", "open_run", "run_config"]
