"""The page of a run: one self-contained file that says what was found, what became of it, and what to do next."""
