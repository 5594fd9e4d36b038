"""Tables and the page from records; imports no model code."""
