"""One folder per fast operation; the plain reference stands beside every fast version."""
