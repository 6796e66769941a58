-- Apply one slice of a Spark task's work, once. Begins with outcomes.lua.
--
-- KEYS   owners + 1: the token   then one bucket a group
-- ARGV   3 digest of the whole task's work, 16 bytes   4 number of this slice, 2 bytes   5 milliseconds that the token is kept
--        6 groups   then a group: its 3 high bytes; records of field (5) and XOR (8); records of field (5) and reason (2)
--        then the reasons: the first is the conflict's, reason number n is the (n + 1)th
-- Reply  0 fresh, 1 repeated, 2 conflicting; completed; failed; late
--
-- Must never apply a slice twice, nor a slice of work that is not the token's: such roots fail.

local token, digest, slice = KEYS[OWNERS + 1], ARGV[3], ARGV[4]
local first_reason = 7 + 3 * ARGV[6]
local completed, failed, late = 0, 0, 0

local known = redis.call('GET', token)
local conflict = known and known:sub(1, 16) ~= digest
if known and not conflict then
  for at = 17, #known, 2 do
    if known:sub(at, at + 1) == slice then return {1, 0, 0, 0} end
  end
end
-- The first write, before any entry changes: a server that is out of memory refuses here and leaves all as it was.
if not conflict then redis.call('SET', token, (known or digest) .. slice, 'PX', ARGV[5]) end

local call, sub, bxor, parse, form = redis.call, string.sub, bit.bxor, struct.unpack, struct.pack
for group = 1, tonumber(ARGV[6]) do
  local key, high = KEYS[OWNERS + 1 + group], ARGV[4 + 3 * group]
  local updates, failures = ARGV[5 + 3 * group], ARGV[6 + 3 * group]
  local fields, set, gone = {}, {}, {}
  for at = 1, #updates, 13 do fields[#fields + 1] = sub(updates, at, at + 4) end
  local updated = #fields
  for at = 1, #failures, 7 do fields[#fields + 1] = sub(failures, at, at + 4) end
  local values = call('HMGET', key, unpack(fields))
  for i, field in ipairs(fields) do
    local value = values[i]
    if not value then
      late = late + 1
    elseif conflict or i > updated then
      local reason = conflict and 0 or parse('>I2', failures, 7 * (i - updated) - 1)
      gone[#gone + 1], failed = field, failed + 1
      tell(sub(value, 9), 'f', high, field .. ARGV[first_reason + reason])
    else
      local left, right, owner = parse('>I4I4c4', value)
      local change_left, change_right = parse('>I4I4', updates, 13 * i - 7)
      if left == change_left and right == change_right then
        gone[#gone + 1], completed = field, completed + 1
        tell(owner, 'a', high, field)
      elseif change_left ~= 0 or change_right ~= 0 then
        set[#set + 1] = field
        set[#set + 1] = form('>i4i4c4', bxor(left, change_left), bxor(right, change_right), owner)
      end
    end
  end
  if #gone > 0 then call('HDEL', key, unpack(gone)) end
  if #set > 0 then call('HSET', key, unpack(set)) end
end
append_outcomes()
return {conflict and 2 or 0, completed, failed, late}
