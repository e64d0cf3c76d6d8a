"""The page of a run: one self-contained file with its garbage, the outcome, and the next step for its reader."""
