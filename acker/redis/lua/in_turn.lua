-- Make several calls one after the other, each only if the one before replied 1 or a table that is
-- not empty. Comes after the table ``calls``: the scripts, each as a function of its own KEYS and ARGV.
--
-- KEYS   the keys of the first call, of the second call, …
-- ARGV   per call its number of keys and its number of arguments; then the arguments of the first
--        call, of the second call, …
-- Reply  the replies of the calls that were made
--
-- Must never make a call after a call that was refused or failed.

local replies, key, arg = {}, 0, 2 * #calls
for number, call in ipairs(calls) do
  local keys, args = {}, {}
  for at = 1, tonumber(ARGV[2 * number - 1]) do keys[at] = KEYS[key + at] end
  for at = 1, tonumber(ARGV[2 * number]) do args[at] = ARGV[arg + at] end
  key, arg = key + #keys, arg + #args
  local reply = call(keys, args)
  if type(reply) == 'table' and reply.err then return reply end
  replies[number] = reply
  if reply ~= 1 and not (type(reply) == 'table' and #reply > 0) then break end
end
return replies
