-- The memory of steps: a prelude of apply.lua, after outcomes.lua.
--
-- KEYS   the caller passes the tokens: field RUN:TASK has the newest attempt, 4 bytes; then, unless
--        the task was only fenced, its last step, 8 bytes, the digest of that step's work, 16
--        bytes, and the numbers of the applied slices, 2 bytes each
-- ARGV   none
-- Reply  none: a verdict for the script after this prelude
--
-- Must never expire: a step may be repeated hours later. Only the task's next step replaces a step.

local FRESH, REPEATED, CONFLICTING, STALE = 0, 1, 2, 3

-- Judge one slice of a step, and remember the slice. ``position``: attempt (4 bytes) and step (8).
local function judge(tokens, run, task, position, digest, slice)
  local field = run .. ':' .. task
  local found = redis.call('HMGET', tokens, 'run', field)
  local current, known = found[1], found[2] or ''
  local attempt, step = struct.unpack('>I4I8', position)
  if current and current ~= run then
    return STALE
  end
  if known ~= '' and attempt < struct.unpack('>I4', known) then
    return STALE
  end
  local last = #known > 4 and struct.unpack('>I8', known, 5) or -1
  if step < last then
    return STALE
  end

  local verdict, done = FRESH, digest
  if step == last then
    done = known:sub(13)
    if done:sub(1, 16) ~= digest then
      verdict = CONFLICTING
    end
    for at = 17, #done, 2 do
      if verdict == FRESH and done:sub(at, at + 1) == slice then
        verdict = REPEATED
      end
    end
  end
  local now = position .. done .. (verdict == FRESH and slice or '')
  if now ~= known then
    redis.call('HSET', tokens, field, now)
  end
  return verdict
end
