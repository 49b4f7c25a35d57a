"""Benchmarks: one file per question, each case beside its peers and the limit of the machine."""
