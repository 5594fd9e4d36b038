"""Parameters and FLOPs of a network, and the budget they are held to."""
