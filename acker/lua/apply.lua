#!lua flags=allow-oom
-- Apply one slice of a step's work, once. Runs after the preludes outcomes.lua and steps.lua.
--
-- KEYS   owners + 1: the tokens   then one bucket per group
-- ARGV   3 the run   4 the task   5 the attempt (4 bytes) and the step (8)
--        6 digest of the whole step's work, 16 bytes
--        7 number of this slice, 2 bytes   8 groups
--        then per group: its 3 high bytes; records of field (5) and XOR (8);
--        records of field (5) and reason number (2)
--        then the reasons: first the reason for a conflict, then reason 1, 2, …
-- Reply  0 fresh, 1 repeated, 2 conflicting, 3 stale; completed; failed; late. The last two verdicts
--        come after false: calls that are made in turn end there.
--
-- Must never apply a slice twice, nor a slice of work that differs from the step's (its roots are
-- failed), nor a slice of a stale attempt, step or run.

local verdict = judge(KEYS[OWNERS + 1], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
if verdict == REPEATED then return {verdict, 0, 0, 0} end
if verdict == STALE then return {false, verdict, 0, 0, 0} end
local conflict, first_reason = verdict == CONFLICTING, 9 + 3 * ARGV[8]
local completed, failed, late = 0, 0, 0

local call, sub, bxor, parse, form = redis.call, string.sub, bit.bxor, struct.unpack, struct.pack
for group = 1, tonumber(ARGV[8]) do
  local key, high = KEYS[OWNERS + 1 + group], ARGV[6 + 3 * group]
  local updates, failures = ARGV[7 + 3 * group], ARGV[8 + 3 * group]
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
if conflict then return {false, verdict, completed, failed, late} end
return {verdict, completed, failed, late}
