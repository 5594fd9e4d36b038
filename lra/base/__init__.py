"""Schema of a config, safe writing, the hash of the code."""
