"""Ordered segments of one partition: append, roll, read, truncate, recover, and the checkpoints beside them."""
