"""Namespaces in containers of Azure Blob Storage."""
