"""One opened repository with its server, store and clock, and its lock, which one run at a time holds."""
