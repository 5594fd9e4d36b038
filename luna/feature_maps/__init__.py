"""Feature maps of kernel attentions: LUNA's learned map and what it is compared with."""
