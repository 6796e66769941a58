"""What a bolt task is between two steps: its attributes and the tuples it holds, wherever it runs next.

store        the contract: the newest two snapshots of each task
memory       within one process                        redis_store  on the server, with lua/save.lua
packing      from a working copy to bytes and back     sealing      nobody else's bytes are unpickled
"""

from __future__ import annotations
