"""Many partitions, and who may write to them."""
