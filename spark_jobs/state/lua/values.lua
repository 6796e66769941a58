-- Prelude of begin.lua and read.lua: reads values, and their epoch. No KEYS, ARGV or reply.

-- Returns the current values, and their undo records if ``through`` the undo log.
local function values_of(entries, undo, through, fields)
  if #fields == 0 then return {}, {} end
  local back = through and redis.call('HMGET', undo, unpack(fields)) or {}
  return redis.call('HMGET', entries, unpack(fields)), back
end

-- Returns a text that changes when another task than this one may have changed its entries.
local function epoch_of(run, task)
  local all, own = unpack(redis.call('HMGET', run, 'epoch:*', 'epoch:' .. task))
  return (all or '') .. ' ' .. (own or '')
end
