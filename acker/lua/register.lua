-- Make roots pending. Runs after the prelude outcomes.lua.
--
-- KEYS   owners + 1: the receipt for the roots that complete at once
--        owners + 2: the number of calls that the owner made
--        then one bucket per group
-- ARGV   3 the owner, 4 bytes   4 milliseconds that the receipt is kept
--        5 milliseconds that the count is kept, '0': forever
--        then per group: its 3 high bytes; records of field (5 bytes) and initial ack-val (8 bytes)
-- Reply  the count; or false, the count, and the roots that collide with another pending entry, 8 bytes
--        each: calls that are made in turn end there.
--
-- Must never XOR into an entry, nor overwrite one: a repeat of this call must change nothing.

local ZERO = string.rep('\0', 8)
local owner = ARGV[3]
local collided, without_receivers = {}, {}

-- A server that restarted with an old snapshot counts fewer calls than the owner made. This is the
-- first write: a server that is out of memory refuses it, so that no new trees begin there.
local count = redis.call('INCR', KEYS[OWNERS + 2])
if ARGV[5] ~= '0' then
  redis.call('PEXPIRE', KEYS[OWNERS + 2], ARGV[5])
end

for group = 1, #KEYS - OWNERS - 2 do
  local key = KEYS[OWNERS + 2 + group]
  local high, records = ARGV[4 + 2 * group], ARGV[5 + 2 * group]
  local fields, initials, new = {}, {}, {}
  for at = 1, #records, 13 do
    fields[#fields + 1] = records:sub(at, at + 4)
    initials[#initials + 1] = records:sub(at + 5, at + 12)
  end
  local values = redis.call('HMGET', key, unpack(fields))
  for i = 1, #fields do
    if not values[i] and initials[i] == ZERO then
      without_receivers[#without_receivers + 1] = high .. fields[i]
    elseif not values[i] then
      new[#new + 1] = fields[i]
      new[#new + 1] = initials[i] .. owner
    elseif values[i] ~= initials[i] .. owner then
      collided[#collided + 1] = high .. fields[i]
    end
  end
  if #new > 0 then
    redis.call('HSET', key, unpack(new))
  end
  if KEPT ~= '0' then
    redis.call('PEXPIRE', key, KEPT)
  end
end

-- A root without receivers leaves no entry by which to recognise a repeat, so there is a receipt.
if #without_receivers > 0 and redis.call('SET', KEYS[OWNERS + 1], '', 'NX', 'PX', ARGV[4]) then
  tell(owner, 'a', '', table.concat(without_receivers))
  append_outcomes()
end
if #collided > 0 then return {false, count, table.concat(collided)} end
return {count}
