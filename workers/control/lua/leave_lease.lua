-- Give the lease of a topology up.
--
-- KEYS   1 the lease, a string: "DRIVER RUN SHAPE NUMBERS"
-- ARGV   1 the driver
-- Reply  nothing
--
-- Must never delete the lease of another driver.

local held = redis.call('GET', KEYS[1])
if held and held:match('^%S+') == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
