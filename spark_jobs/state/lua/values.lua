-- Prelude of begin.lua and read.lua: reads values. No KEYS, ARGV or reply.

-- Returns the current values, and their undo records if ``through`` the undo log.
local function values_of(entries, undo, through, fields)
  if #fields == 0 then return {}, {} end
  local back = through and redis.call('HMGET', undo, unpack(fields)) or {}
  return redis.call('HMGET', entries, unpack(fields)), back
end

-- Returns a text that changes when others than this task may have changed its entries.
local function foreign_writes(run, task)
  local all, own = unpack(redis.call('HMGET', run, 'foreign:*', 'foreign:' .. task))
  return (all or '') .. ' ' .. (own or '')
end
