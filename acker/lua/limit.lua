#!lua flags=allow-oom
-- Give back permits of one value, take some, queue for the rest: see ``decide`` in ../limits.py.
--
-- KEYS   1 the bucket: the time at which it is full (double), then 24 bytes per queued task: task,
--          call, permits granted, permits wanted (4 each), time of its next call (double)
-- ARGV   1 task   2 call   3 permits given back   4 permits wanted   5 the rate's interval
--        6 time in which a bucket fills   7 most permits per grant   8 longest wait   9 grace
--        10 time for which a call is remembered
-- Reply  permits granted, and milliseconds until the task should call again, or -1
--
-- Times are microseconds of this server's clock. Must never grant permits twice for one call.

local task, call = tonumber(ARGV[1]), tonumber(ARGV[2])
local wanted, interval, depth = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local most, longest = tonumber(ARGV[7]), tonumber(ARGV[8])
local grace, kept = tonumber(ARGV[9]), tonumber(ARGV[10])
local form, min, max, time = '>I4I4I4I4d', math.min, math.max, redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function wait_ms(due)
  return max(0, math.ceil((due - now) / 1000))
end

local packed = redis.call('GET', KEYS[1]) or struct.pack('>d', now)
local full_at = struct.unpack('>d', packed)
local places, at_mine, others, before = {}, nil, 0, 0
for at = 9, #packed, 24 do
  local whose, known, granted, wants, due = struct.unpack(form, packed, at)
  -- A time much later than the longest wait means that the clock was set back.
  if due - now >= -kept and due - now <= 2 * longest then
    if whose == task then
      if known == call then return {granted, wants > 0 and wait_ms(due) or -1} end
      if wants > 0 then at_mine, before = #places + 1, others end
    else
      places[#places + 1] = packed:sub(at, at + 23)
      if due >= now - grace then others = others + wants end
    end
  end
end

full_at = max(now, min(full_at, now + depth) - ARGV[3] * interval)
if not at_mine then before = others end
local asked = min(wanted, most)
local permits = max(0, min(asked, math.floor((depth - (full_at - now) + 1) / interval) - before))
if at_mine and permits < asked then permits = 0 end
full_at = full_at + permits * interval
local keeps_place = at_mine and permits == 0 and wanted > 0
local left = min(wanted - permits, most)
local wait = -1
if left > 0 then
  local ahead = keeps_place and before or others
  wait = min(wait_ms(full_at - depth + (ahead + left) * interval), longest / 1000)
end
local place = struct.pack(form, task, call, permits, left, now + max(0, wait) * 1000)
table.insert(places, keeps_place and at_mine or #places + 1, place)
redis.call('SET', KEYS[1], struct.pack('>d', full_at) .. table.concat(places),
  'PX', math.ceil((full_at - now + longest + kept) / 1000))
return {permits, wait}
