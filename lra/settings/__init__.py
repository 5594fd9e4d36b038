"""From words to a checked Run."""
