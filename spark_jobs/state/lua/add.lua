-- Prelude of write.lua: increments entries. Begins with undo.lua. No KEYS, ARGV or reply.

-- Calculates the sums of small amounts and small numbers, because a Lua number holds 53 bits. Returns
-- field and sum of each, field and amount of the others, and the indexes of missing entries.
local function small_sums(entries, fields, amounts)
  local sums, others, missing = {}, {}, {}
  for i, old in ipairs(#fields > 0 and redis.call('HMGET', entries, unpack(fields)) or {}) do
    if not old then missing[#missing + 1] = i end
    if not old or old == '0' or (#old <= 15 and old:find('^%-?[1-9]%d*$')) then
      sums[#sums + 1], sums[#sums + 2] = fields[i], string.format('%d', (old or 0) + amounts[i])
    else
      others[#others + 1], others[#others + 2] = fields[i], string.format('%d', amounts[i])
    end
  end
  return sums, others, missing
end

-- Increments by field and amount of each. Returns their undo records; nothing, with nothing changed,
-- if a value is not a 64-bit number.
local function increment(entries, changes)
  local done = {}
  for i = 1, #changes, 2 do
    local kind = redis.call('HEXISTS', entries, changes[i]) == 1 and '+' or '*'
    if type(redis.pcall('HINCRBY', entries, changes[i], changes[i + 1])) == 'table' then
      for j = 1, #done, 2 do take_back(entries, done[j], done[j + 1]) end
      return
    end
    done[i], done[i + 1] = changes[i], kind .. changes[i + 1]
  end
  return done
end
