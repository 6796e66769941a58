"""``python3 -m tiercel.compose THING…`` installs missing programs; it needs no library."""

import sys

from tiercel.compose.install import main

sys.exit(main(sys.argv[1:]))
