"""The parts of scripts/gpu_quarter.py."""
