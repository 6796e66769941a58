-- Prelude of begin.lua and read.lua: reads values. No KEYS, ARGV or reply.

local MOST = 4 * 1024 * 1024 -- bytes, after which no further values are read

-- Appends fields of a hash to ``values``; returns their bytes.
local function read_into(values, key, fields, first, last)
  local size, found = 0, redis.call('HMGET', key, unpack(fields, first, last))
  for i = 1, #found do
    local value = found[i]
    values[first + i - 1] = value
    if value then size = size + #value end
  end
  return size
end

-- Returns the current values of the first fields, and their undo records if ``through`` the undo log:
-- of all fields, unless they have many megabytes.
local function values_of(entries, undo, through, fields)
  local values, back, size, first, count = {}, {}, 0, 1, 4
  while first <= #fields and size < MOST do
    local last = math.min(first + count - 1, #fields)
    size = size + read_into(values, entries, fields, first, last)
    if through then size = size + read_into(back, undo, fields, first, last) end
    first, count = last + 1, 4 * count
  end
  return values, back
end

-- Returns a text that changes when others than this task may have changed its entries.
local function foreign_writes(run, task)
  local all, own = unpack(redis.call('HMGET', run, 'foreign:*', 'foreign:' .. task))
  return (all or '') .. ' ' .. (own or '')
end
