"""Mixers of hidden states with projections of their own: one file a method, luna/mixing.py."""
