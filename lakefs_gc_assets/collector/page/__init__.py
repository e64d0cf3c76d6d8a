"""The page of a run: one self-contained file with its garbage, what became of it, and what to do next."""
