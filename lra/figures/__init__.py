"""Pictures, all in one style: draw.py saves them, style.py has colours, labels.py places names.

Of records: records.py. Of benchmarks: bench.py. Of one trained run: channels.py and maps.py. Of
converted models (students.py): tokens.py, patches.py, channels.py and distillation.py.
"""
