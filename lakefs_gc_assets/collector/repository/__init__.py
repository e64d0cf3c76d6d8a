"""Opening a repository, its clocks, and its lock."""
