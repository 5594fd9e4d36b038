"""Pictures, all in one style (style.py): of tables, benchmarks, trained runs, converted models."""
