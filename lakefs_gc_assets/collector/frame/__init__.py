"""Frames: their names, columns and figures, how they are written, and how they are read again."""
