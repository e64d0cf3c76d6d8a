"""What the collector itself keeps in the store, and in which formats."""
