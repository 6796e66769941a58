"""``python3 -m compose THING…`` installs what is missing, before tiercel itself is installed."""

import sys

from compose.install import main

sys.exit(main(sys.argv[1:]))
