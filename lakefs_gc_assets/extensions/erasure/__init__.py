"""Erasure of what is at paths: finding addresses and holders, erasing versions, and the certificate."""
