-- Appends chunks to lanes of the relay, once, however often the client repeats the call.
--
-- KEYS[1]   string: the last sequence number of this writer
-- KEYS[2..] streams: one lane for each payload, in the same order
-- ARGV[1]   this call's sequence number; a writer counts its calls from 1
-- ARGV[2]   milliseconds for which a writer is remembered
-- ARGV[3..] payloads
-- Reply     1 appended, 0 a repeat
--
-- Must never append without noting the sequence number: a chunk that stands twice in one micro-batch cancels its own edges
-- out, so that its roots could only time out.
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) <= last then
  return 0
end
for i = 2, #KEYS do
  redis.call('XADD', KEYS[i], '*', 'c', ARGV[i + 1])
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
