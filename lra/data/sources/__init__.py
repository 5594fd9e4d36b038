"""Where published data come from: archives, downloads, TensorFlow Datasets, the LRA release."""
