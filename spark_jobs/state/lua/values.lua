-- Prelude of begin.lua and read.lua: reads values. No KEYS, ARGV or reply.

-- Returns the values as they are, and what takes them back: nothing if not ``through`` the undo
-- log.
local function values_of(entries, undo, through, fields)
  if #fields == 0 then return {}, {} end
  local back = through and redis.call('HMGET', undo, unpack(fields)) or {}
  return redis.call('HMGET', entries, unpack(fields)), back
end
