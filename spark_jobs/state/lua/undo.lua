-- Prelude of begin.lua and write.lua: takes one change of an entry back. Has no KEYS, ARGV or reply
-- of its own.

local function opposite(amount)
  return amount:sub(1, 1) == '-' and amount:sub(2) or '-' .. amount
end

-- Amounts stay text: a Lua number holds 53 bits.
local function take_back(entries, field, record)
  local kind, rest = record:sub(1, 1), record:sub(2)
  if kind == '=' then
    redis.call('HSET', entries, field, rest)
  elseif kind == '-' then
    redis.call('HDEL', entries, field)
  else
    -- An error: another task has put something else there, which stays.
    local left = redis.pcall('HINCRBY', entries, field, opposite(rest))
    if kind == '*' and left == 0 then redis.call('HDEL', entries, field) end
  end
end
