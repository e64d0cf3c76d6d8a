"""What a run leaves to the next one, and which run an optimized run builds on."""
