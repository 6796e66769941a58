#!lua flags=allow-oom
-- Delete the snapshots that earlier runs left.
--
-- KEYS   1 meta   2 snapshots
-- ARGV   1 run
-- Reply  1 deleted, 0 the inbox belongs to another run

if redis.call('HGET', KEYS[1], 'run') ~= ARGV[1] then return 0 end
for _, name in ipairs(redis.call('HKEYS', KEYS[2])) do
  if name:sub(1, 5) == 'left ' then redis.call('HDEL', KEYS[2], name) end
end
return 1
