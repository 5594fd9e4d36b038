"""Tables and figures from records; imports no model code."""
