"""Object stores behind one small interface."""
