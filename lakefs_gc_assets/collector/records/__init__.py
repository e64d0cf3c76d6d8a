"""Records that runs leave in the store, and what their columns can say: the ground floor of the run."""
