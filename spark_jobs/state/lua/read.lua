-- Read values in one shard, with what takes them back. Begins with values.lua.
--
-- KEYS   entries, run, turn, undo: see redis_shard.py
-- ARGV   1 "1": through the undo log, "": as they are   then the fields
-- Reply  1: the values   2: for each what takes it back, or nothing
--
-- Must never read the two at two moments: other tasks write to the entries.

return {values_of(KEYS[1], KEYS[4], ARGV[1] == '1', {unpack(ARGV, 2)})}
