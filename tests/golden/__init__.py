"""Golden runs: numbers of every method and of every shared part, kept in `runs/`.

A run is known by declared integers (lra/base/versions.py), not by a hash of its code. So somebody
has to notice when an edit moves numbers and no integer was raised: test_golden.py does, and names
the integer. `python -m tests.golden write [NAME ...]` writes the files.
"""
