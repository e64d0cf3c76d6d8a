"""Objects that other retention rules would free, and objects that each branch and tag holds; deletes nothing."""
