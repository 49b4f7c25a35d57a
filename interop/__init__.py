"""A real Kafka beside oncelog: its tools read what we write, its broker serves it, and we read what it leaves."""
