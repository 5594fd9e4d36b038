"""The project under fire: failing disks, kills, crowds and bad input, counted and published.

`python -m tests.fire` is the long form (`make chaos`); tests/fire/test_fire.py is the quick one.
"""
