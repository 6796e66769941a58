#!lua flags=allow-oom
-- Remove roots from the ledger: fail them, release them, or forget them without an outcome. Runs
-- after the prelude outcomes.lua.
--
-- KEYS   from owners + 1: one bucket per group
-- ARGV   3 'f' fail, 'r' release, '-' forget   4 groups
--        then per group: its 3 high bytes; records of field (5 bytes) and reason number (2 bytes,
--        used only by 'f')
--        then the reasons, numbered from 0
-- Reply  the number of roots that were pending
--
-- Must never append an outcome for a root that is not pending: the root has had its outcome.

local kind, groups = ARGV[3], tonumber(ARGV[4])
local removed = 0

for group = 1, groups do
  local key, high, records = KEYS[OWNERS + group], ARGV[3 + 2 * group], ARGV[4 + 2 * group]
  local fields, gone = {}, {}
  for at = 1, #records, 7 do
    fields[#fields + 1] = records:sub(at, at + 4)
  end
  local values = redis.call('HMGET', key, unpack(fields))
  for i, field in ipairs(fields) do
    if values[i] then
      gone[#gone + 1] = field
      if kind == 'f' then
        local reason = ARGV[5 + 2 * groups + struct.unpack('>I2', records, 7 * i - 1)]
        tell(values[i]:sub(9), kind, high, field .. reason)
      elseif kind == 'r' then
        tell(values[i]:sub(9), kind, high, field)
      end
    end
  end
  if #gone > 0 then
    redis.call('HDEL', key, unpack(gone))
    removed = removed + #gone
  end
end
append_outcomes()
return removed
