"""Frames: their names, columns and figures, and how they are written and read."""
