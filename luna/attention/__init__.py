"""One file per method; the file name is the registry key (see luna/registry.py)."""
