#!lua flags=allow-oom
-- Tell owners to restart the timeouts of those roots that are pending, and extend the lifetime of
-- the buckets. Runs after the prelude outcomes.lua.
--
-- KEYS   from owners + 1: one bucket per group
-- ARGV   3 the kind: 't', or 'w' for roots that wait for a limit; then per group: its 3 high bytes;
--        fields, 5 bytes each
-- Reply  nothing
--
-- Must never change an ack-val.

for group = 1, #KEYS - OWNERS do
  local key, high, packed = KEYS[OWNERS + group], ARGV[2 + 2 * group], ARGV[3 + 2 * group]
  local fields = {}
  for at = 1, #packed, 5 do
    fields[#fields + 1] = packed:sub(at, at + 4)
  end
  local values = redis.call('HMGET', key, unpack(fields))
  for i, field in ipairs(fields) do
    if values[i] then
      tell(values[i]:sub(9), ARGV[3], high, field)
    end
  end
  if KEPT ~= '0' then
    redis.call('PEXPIRE', key, KEPT)
  end
end
append_outcomes()
