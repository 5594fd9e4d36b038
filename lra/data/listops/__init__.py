"""ListOps: the task, its expressions, the generator that draws them, the official files."""
