"""What is stored: which parts of a namespace a run lists, and how."""
