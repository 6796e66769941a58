"""``python -m tiercel``: the same as ``tiercel``."""

from tiercel.workers.cli.app import main

main()
