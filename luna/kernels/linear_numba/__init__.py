"""Linear attention in machine code for CPUs: passes over blocks, which call a feature map."""
