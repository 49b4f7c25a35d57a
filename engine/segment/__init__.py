"""One segment file and what points into it: record batches and their codecs."""
