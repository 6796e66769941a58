#!lua flags=allow-oom
-- Take a seat in a topology, or say again that its attendant is there.
--
-- KEYS   1 the seat, a string: "ATTENDANT NOTE"
-- ARGV   1 the attendant   2 the new value, which begins with the attendant
--        3 milliseconds that it lasts   4 1: take it from another attendant
-- Reply  1 taken, 0 another attendant has it
--
-- Must never shorten or replace what another attendant has, unless it is told to.

local held = redis.call('GET', KEYS[1])
if held and held:match('^%S+') ~= ARGV[1] and ARGV[4] ~= '1' then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
