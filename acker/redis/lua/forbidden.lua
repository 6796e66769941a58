-- Return the commands that the calling user may not call on a key.
--
-- KEYS   the key
-- ARGV   whole calls; the word KEY stands for the key
-- Reply  the commands that it may not call
--
-- Must never make one of the calls. Must never ask about a call that lacks arguments: Redis 7.0
-- looks for its keys behind its end.

local forbidden = {}
for _, call in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(call, '%S+') do
    words[#words + 1] = word == 'KEY' and KEYS[1] or word
  end
  if not redis.acl_check_cmd(unpack(words)) then forbidden[#forbidden + 1] = words[1] end
end
return forbidden
