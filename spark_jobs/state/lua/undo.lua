-- Prelude of begin.lua and write.lua: the undo log. No KEYS, ARGV or reply.

-- Amounts stay text: a Lua number holds 53 bits.
local function take_back(entries, field, record)
  local kind, rest = record:sub(1, 1), record:sub(2)
  if kind == '=' then
    redis.call('HSET', entries, field, rest)
  elseif kind == '-' then
    redis.call('HDEL', entries, field)
  else
    -- On an error another task has put another value there, which stays.
    local left = redis.pcall('HINCRBY', entries, field, (('-' .. rest):gsub('^%-%-', '')))
    if kind == '*' and left == 0 then redis.call('HDEL', entries, field) end
  end
end

-- Returns field and record of each change in a record, which may be a packed one: see write.lua.
local function unpacked(field, record)
  if record:sub(1, 1) ~= '#' then return {field, record} end
  local fields, amounts, missing = cmsgpack.unpack(record:sub(2))
  local kinds, records = {}, {}
  for _, i in ipairs(missing) do kinds[i] = '*%d' end
  for i, amount in ipairs(cjson.decode(amounts)) do
    records[2 * i - 1], records[2 * i] = fields[i], string.format(kinds[i] or '+%d', amount)
  end
  return records
end

-- Unpacks about ``most`` changes of calls up to ``last`` in the log. Returns true if more are left.
local function unpack_some(undo, last, most)
  local left = tonumber(most)
  for call = tonumber(last or 0), 1, -1 do
    local packed = redis.call('HGET', undo, '#' .. call)
    if packed then
      if left <= 0 then return true end
      local records = unpacked('', packed)
      redis.call('HSET', undo, unpack(records))
      redis.call('HDEL', undo, '#' .. call)
      left = left - #records / 2
    end
  end
end

-- Undoes about ``most`` changes, fewer if they are large. Returns field and record of the marks among them: see begin.lua.
local function take_back_some(entries, undo, most)
  local marks, left = {}, tonumber(most)
  for _, field in ipairs(redis.call('HRANDFIELD', undo, most)) do
    local record = redis.call('HGET', undo, field)
    if record:sub(1, 1) == '~' then
      marks[#marks + 1], marks[#marks + 2] = field, record
    elseif left > 0 then
      local records = unpacked(field, record)
      for i = 1, #records, 2 do take_back(entries, records[i], records[i + 1]) end
      redis.call('HDEL', undo, field)
      left = left - #records / 2 - #record / 2048
    end
  end
  return marks
end
