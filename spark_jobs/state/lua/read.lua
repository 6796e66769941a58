-- Read values and their undo records in one shard. Begins with values.lua.
--
-- KEYS   entries, run, turn, undo: see redis_shard.py
-- ARGV   1 "1": through the undo log, "": as they are   then the fields
-- Reply  1: the values   2: the undo record of each, or nothing
--
-- Must read both in one call, because other tasks write to the entries.

return {values_of(KEYS[1], KEYS[4], ARGV[1] == '1', {unpack(ARGV, 2)})}
