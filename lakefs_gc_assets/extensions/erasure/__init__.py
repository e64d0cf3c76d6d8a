"""Erasure of the objects at given paths: finding addresses and holders, erasing versions, and the certificate."""
