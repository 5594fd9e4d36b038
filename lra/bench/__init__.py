"""`lra bench`: what things cost, measured.

A benchmark (attention, luna, convert, compute, train, data: one file each) is a list of cases with
their lengths. Rounds over all cases (rounds.py) measure them in processes of their own (worker.py);
every number is a row (rows.py); rows become a file of numbers and a page of tables (sheet.py). A
new case is a subclass of BenchCase that says how to build it and what to call.
"""
