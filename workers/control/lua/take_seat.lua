#!lua flags=allow-oom
-- Take or renew a seat in a topology.
--
-- KEYS   1 the seat, a string: "ATTENDANT NOTE"
-- ARGV   1 the attendant   2 the new value, which begins with the attendant
--        3 the milliseconds until it lapses   4 1: take it even from another attendant
-- Reply  1 taken, 0 another attendant has it
--
-- Must never shorten or replace another attendant's seat, unless ARGV[4] is 1.

local held = redis.call('GET', KEYS[1])
if held and held:match('^%S+') ~= ARGV[1] and ARGV[4] ~= '1' then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
