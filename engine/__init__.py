"""oncelog: Kafka's transactional log as a Python library."""

__version__ = "0.1.0"

__all__ = ["__version__"]
