"""One file per method; the file name is the registry key (see luna/base.py)."""
