-- Return the commands that the calling user may not call on a key.
--
-- KEYS   the key
-- ARGV   the commands
-- Reply  the forbidden ones
--
-- Must never call one of them.

local forbidden = {}
for _, command in ipairs(ARGV) do
  if not redis.acl_check_cmd(command, KEYS[1]) then forbidden[#forbidden + 1] = command end
end
return forbidden
