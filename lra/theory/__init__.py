"""The claims of LUNA's theory, measured and drawn: `lra theory` (docs/theory.md)."""
