"""Linear attention in Triton for any feature map that a block of tokens can compute by itself."""
