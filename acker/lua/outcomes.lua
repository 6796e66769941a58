-- Collect outcomes and append them to the feeds, one entry per owner and call. A prelude of all
-- scripts that end trees.
--
-- KEYS  1 .. owners: the feeds; feed i belongs to owner i. Then the script's own keys.
-- ARGV  1 owners   2 milliseconds that entries and feeds are kept, '0': forever. Then the script's
--       own arguments.
-- Reply none: the script after this prelude replies.
--
-- Must never touch a key that is not in KEYS: a cluster refuses that. Must never convert an id to a
-- Lua number, which is a double.

local OWNERS, KEPT = tonumber(ARGV[1]), ARGV[2]
local FEED_LENGTH = 100000 -- bound if the reader never returns; it deletes the entries it has read

local told = {}

-- owner: 4 bytes, the incarnation of its worker and its number
-- kind: 'a'cked, 'f'ailed, 'r'eleased, 't'imeout reset or 'w'aiting
-- high, rest: the outcome's bytes in two parts: joining them for each root would waste a string
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
