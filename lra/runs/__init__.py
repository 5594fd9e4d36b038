"""A run on disk: its folder, its answers, where it was made."""
