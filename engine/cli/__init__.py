"""The command line: what a person asks, and what they see."""
