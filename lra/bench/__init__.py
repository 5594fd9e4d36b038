"""`lra bench` and `lra plan`: time and memory, measured."""
