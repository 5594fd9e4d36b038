"""Pictures, all in one style: draw.py saves them, report/styles.py gives every method its style.

Of records: records.py. Of benchmarks: bench.py. Of one trained run (trained.py): its channels
(channels.py) and attention (maps.py). Of converted models (students.py): attention over words
(tokens.py) or patches (patches.py), channels again, and their distillation (distillation.py).
"""
