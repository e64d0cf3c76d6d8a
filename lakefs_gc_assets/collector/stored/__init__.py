"""Files of the collector in the store, and their formats."""
