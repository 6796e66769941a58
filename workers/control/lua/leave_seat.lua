-- Give up a seat in a topology.
--
-- KEYS   1 the seat, a string: "ATTENDANT NOTE"
-- ARGV   1 the attendant
-- Reply  nothing
--
-- Must never take another attendant's seat.

local held = redis.call('GET', KEYS[1])
if held and held:match('^%S+') == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
