"""oncelog._native: the compiled modules. There is no Python twin of them."""

from importlib.util import find_spec as _find_spec

MODULES = (
    "abort_filter",
    "accumulator",
    "attempt",
    "batch",
    "checksum",
    "columns",
    "compaction",
    "crew",
    "offset_records",
    "offsets",
    "process",
    "published",
    "records",
    "segment",
    "sequence",
    "syncing",
    "txn_index",
)

_missing = [name for name in MODULES if _find_spec(f"{__name__}.{name}") is None]
if _missing:
    raise ImportError(
        f"oncelog's compiled modules are not built (missing: {', '.join(_missing)}). "
        "In a checkout run `make dev`, elsewhere `pip install .`; both need a C compiler."
    )
