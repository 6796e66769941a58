-- Prelude of begin.lua and write.lua: undoes changes of entries. No KEYS, ARGV or reply.

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
    -- On an error another task has put another value there, which stays.
    local left = redis.pcall('HINCRBY', entries, field, opposite(rest))
    if kind == '*' and left == 0 then redis.call('HDEL', entries, field) end
  end
end

-- Undoes at most ``most`` changes. Returns field and record of the marks among them: this script
-- does not have their keys, see take_back_marks.lua.
local function take_back_some(entries, undo, most)
  local changes, marks = redis.call('HRANDFIELD', undo, most, 'WITHVALUES'), {}
  for i = 1, #changes, 2 do
    local field, record = changes[i], changes[i + 1]
    if record:sub(1, 1) == '~' then
      marks[#marks + 1], marks[#marks + 2] = field, record
    else
      take_back(entries, field, record)
      redis.call('HDEL', undo, field)
    end
  end
  return marks
end
