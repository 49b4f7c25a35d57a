"""What `oncelog.spark` offers, and when it is loaded."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import types

import oncelog.spark


def test_every_name_is_there_whatever_module_was_imported_before() -> None:
    """Goal: no function is hidden by a module of its name, which Python would put in its place."""
    for module in pkgutil.iter_modules(oncelog.spark.__path__, "oncelog.spark."):
        importlib.import_module(module.name)
    names = {
        "OncelogDataSource",
        "aborted_transactions",
        "batch_headers",
        "crc_ok",
        "decode_batches",
        "find_java",
        "is_visible",
        "partition_for_key",
        "register",
        "use_java",
        "visible",
    }
    assert set(oncelog.spark.__all__) == names
    for name in names:
        assert not isinstance(getattr(oncelog.spark, name), types.ModuleType), name


def test_nothing_of_spark_is_loaded_before_it_is_asked_for() -> None:
    program = (
        "import sys, oncelog.spark; print(*{'pyspark', 'pandas', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
