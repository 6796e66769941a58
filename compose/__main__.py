"""``python3 -m tiercel.compose THING…`` installs what is missing, before any library is there."""

import sys

from tiercel.compose.install import main

sys.exit(main(sys.argv[1:]))
