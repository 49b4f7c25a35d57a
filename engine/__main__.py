"""``python -m oncelog`` is the command ``oncelog``."""

from .cli.main import main

main()
