-- Collect outcomes and append them to the feeds, one entry per owner and call. All scripts that end
-- trees begin with this.
--
-- KEYS  1 .. owners: the feeds; feed i belongs to owner i. What follows is the script's own.
-- ARGV  1 owners   2 milliseconds that entries and feeds are kept, '0': for ever. What follows is
--       the script's own.
-- Reply none: the script that follows it replies.
--
-- Must never touch a key that is not in KEYS: a cluster refuses that. An id must never become a Lua
-- number, which is a double.

local OWNERS, KEPT = tonumber(ARGV[1]), ARGV[2]
local FEED_LENGTH = 100000 -- of a reader that never comes back; a reader deletes what it has read

local told = {}

-- owner: 4 bytes, the incarnation of its worker and its number; kind: 'a'cked, 'f'ailed, 'r'eleased
-- 't'imeout reset or 'w'aiting; high and rest: the outcome's bytes. They come in two parts because joining
-- them for each root makes a string that is thrown away.
local function tell(owner, kind, high, rest)
  local kinds = told[owner]
  if not kinds then
    kinds = {}
    told[owner] = kinds
  end
  local outcomes = kinds[kind]
  if outcomes then
    outcomes[#outcomes + 1] = high
    outcomes[#outcomes + 1] = rest
  else
    kinds[kind] = {high, rest}
  end
end

local function append_outcomes()
  for owner, kinds in pairs(told) do
    local number = struct.unpack('>I2', owner, 3)
    if number >= 1 and number <= OWNERS then
      local entry = {}
      for kind, outcomes in pairs(kinds) do
        entry[#entry + 1] = kind
        entry[#entry + 1] = table.concat(outcomes)
      end
      redis.call('XADD', KEYS[number], 'MAXLEN', '~', FEED_LENGTH, '*', unpack(entry))
      if KEPT ~= '0' then
        redis.call('PEXPIRE', KEYS[number], KEPT)
      end
    end
  end
end
