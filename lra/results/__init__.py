"""Read, check and pass on what finished runs left."""
