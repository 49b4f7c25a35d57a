"""The embedded door: producers, consumers, admin, and Arrow at both ends."""
