"""The frames of a run: what their columns mean, and how they are stored beside the repository's metadata."""
