"""Records that runs leave in the store, and the values of their columns: the lowest layer of the collector."""
