"""Earlier runs of a repository: which there were, what they deleted and what they saw."""
