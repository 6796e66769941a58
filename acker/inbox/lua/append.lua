#!lua
-- Append one parcel to an inbox, once.
--
-- KEYS   1 meta   2 entries   3 senders   4 wake
-- ARGV   1 run   2 sender's task   3 its attempt   4 number   5 part   6 digest
--        7 most tuples, 8 most bytes; below 0: no bound   9 most drawn senders to remember
--        then per chunk its number of tuples and its payload
-- Reply  0 stale, 1 done, 2 repeated, 3 different, 4 full
--
-- Must never remember a part that it did not append. Must never take an append of a forgotten drawn
-- sender: it may be a repeat.

-- Forget the older half of the drawn senders, which have the lowest numbers.
local function forget_senders()
  local drawn = {}
  for _, sender in ipairs(redis.call('HKEYS', KEYS[3])) do
    local number = -(tonumber(sender) or 0)
    if number > 1 then drawn[#drawn + 1] = {number, sender} end
  end
  if #drawn <= tonumber(ARGV[9]) then return end
  table.sort(drawn, function(one, other) return one[1] < other[1] end)
  local half = math.floor(#drawn / 2)
  -- By its own text: from the year 2038 on the number is above 2^53, and not exact.
  for i = 1, half do redis.call('HDEL', KEYS[3], drawn[i][2]) end
  redis.call('HSET', KEYS[3], 'forgotten', string.format('%.0f', drawn[half][1]))
end

local run, tuples, size = unpack(redis.call('HMGET', KEYS[1], 'run', 'tuples', 'bytes'))
if run ~= ARGV[1] then return 0 end
local known = redis.call('HGET', KEYS[3], ARGV[2])
if known then
  local attempt, last, last_part, digest = known:match('^(%d+) (%d+) (%d+) (%x*)$')
  if tonumber(attempt) > tonumber(ARGV[3]) then return 0 end
  local number, part = tonumber(ARGV[4]), tonumber(ARGV[5])
  last, last_part = tonumber(last), tonumber(last_part)
  if number == last and part == last_part and digest ~= ARGV[6] then return 3 end
  if number < last or number == last and part <= last_part then return 2 end
elseif tonumber(ARGV[2]) < -1 then
  if -tonumber(ARGV[2]) <= tonumber(redis.call('HGET', KEYS[3], 'forgotten') or 0) then return 0 end
end

tuples, size = tonumber(tuples or 0), tonumber(size or 0)
for at = 10, #ARGV, 2 do
  tuples, size = tuples + ARGV[at], size + #ARGV[at + 1]
end
local most_tuples, most_size = tonumber(ARGV[7]), tonumber(ARGV[8])
if most_tuples >= 0 and (tuples > most_tuples or size > most_size) then
  if redis.call('XLEN', KEYS[2]) > 0 then return 4 end
end

redis.call('HSET', KEYS[3], ARGV[2], table.concat({unpack(ARGV, 3, 6)}, ' '))
for at = 10, #ARGV, 2 do
  redis.call('XADD', KEYS[2], '*', ARGV[at], ARGV[at + 1])
end
redis.call('HSET', KEYS[1], 'tuples', tuples, 'bytes', size)
if not known and redis.call('HLEN', KEYS[3]) > tonumber(ARGV[9]) then forget_senders() end
if redis.call('EXISTS', KEYS[4]) == 0 then redis.call('RPUSH', KEYS[4], '') end
return 1
