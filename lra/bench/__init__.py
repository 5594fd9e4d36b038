"""`lra bench`: time and memory, measured.

A benchmark (attention, luna, convert, compute, train, data: one file each) is a list of cases with
their lengths. Rounds over all cases (rounds.py) measure them in separate processes (worker.py);
every number is a row (rows.py); rows become a file of numbers and a page of tables (sheet.py). A
new case is a subclass of BenchCase that builds what it measures and calls it.
"""
