#!lua flags=allow-oom
-- Take the lease of a topology, or renew it.
--
-- KEYS   1 the lease, a string: "DRIVER RUN SHAPE NUMBERS"
-- ARGV   1 the driver   2 the new value, which begins with the driver
--        3 milliseconds that it lasts
-- Reply  1 taken, 0 another driver holds it
--
-- Must never shorten or replace the lease of another driver.

local held = redis.call('GET', KEYS[1])
if held and held:match('^%S+') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
