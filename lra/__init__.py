"""The Long Range Arena: data, one Transformer, training, counted compute, records and tables."""
