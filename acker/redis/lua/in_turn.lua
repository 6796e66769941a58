-- Make several calls one after the other, each only if the one before replied 1, or a table whose
-- first element is neither nil nor false. Comes after the table ``scripts``: each script as a
-- function of its own KEYS and ARGV.
--
-- KEYS   the keys of the first call, of the second call, …
-- ARGV   1 number of calls   then per call: its script, and its numbers of keys and of arguments
--        then the arguments of the first call, of the second call, …
-- Reply  the replies of the calls that were made
--
-- Must never make a call after a call that was refused or failed.

local replies, key, arg = {}, 0, 1 + 3 * ARGV[1]
for number = 1, tonumber(ARGV[1]) do
  local keys, args = {}, {}
  for at = 1, tonumber(ARGV[3 * number]) do keys[at] = KEYS[key + at] end
  for at = 1, tonumber(ARGV[3 * number + 1]) do args[at] = ARGV[arg + at] end
  key, arg = key + #keys, arg + #args
  local reply = scripts[tonumber(ARGV[3 * number - 1])](keys, args)
  if type(reply) == 'table' and reply.err then return reply end
  replies[number] = reply
  if reply ~= 1 and not (type(reply) == 'table' and reply[1]) then break end
end
return replies
