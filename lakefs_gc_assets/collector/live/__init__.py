"""Live addresses: uncommitted data, commits, staged entries that no list has, other repositories."""
