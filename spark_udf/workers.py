"""The Python process that runs a task: Spark's, and used again for the next one."""

from __future__ import annotations

import functools
import gc
import os


@functools.cache
def spare_what_is_loaded() -> None:
    """Keeps Spark's collection of garbage after each task away from all that is loaded by now: a task's last act.

    A worker that is used again collects before it takes the next task. It looks at 80,000 objects of pyspark, pandas,
    pyarrow and numpy each time, which takes about as long as to read a hundred thousand records, and none of them ever
    goes. It happens once in a process: what later tasks leave is collected as ever.
    """
    if os.environ.get("SPARK_REUSE_WORKER"):  # Spark's word to its workers, and to nobody else
        gc.freeze()
