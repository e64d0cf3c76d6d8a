"""What other rules of retention would free, and what each branch and tag holds; nothing is deleted here."""
