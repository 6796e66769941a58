"""``python -m workers``: the same as ``tiercel``."""

from workers.cli import main

main()
