"""The parts of scripts/study/gpu_quarter.py."""
