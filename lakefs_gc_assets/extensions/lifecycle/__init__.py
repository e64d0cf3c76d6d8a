"""Object lifecycle: lets entries of branches expire by rules of a policy, in commits that can be reverted."""
