"""The same log for asyncio: tasks wait in the event loop, and no call has a thread of its own."""

from __future__ import annotations

from .consumer import Consumer
from .log import Log, open, over
from .producer import ArrowDelivery, Delivery, Producer, Transaction

__all__ = [
    "ArrowDelivery",
    "Consumer",
    "Delivery",
    "Log",
    "Producer",
    "Transaction",
    "open",
    "over",
]
