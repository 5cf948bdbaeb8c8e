-- Gives a lock its last value if it is still the token's. It ends when it would have ended, or earlier; never later.
--
-- Keys: the lock, and the budget where the action has one. Arguments: the token, what was counted, the value, how many ms
-- may be left at most (0: as many as there are), and what is counted from now on.
if KEYS[2] then
  local at = redis.call('ZSCORE', KEYS[2], ARGV[2])
  if at then
    -- Added before the other is removed: an empty set would be deleted, and its end with it.
    redis.call('ZADD', KEYS[2], at, ARGV[5])
    redis.call('ZREM', KEYS[2], ARGV[2])
  end
end
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
local left, most = redis.call('PTTL', KEYS[1]), tonumber(ARGV[4])
if most > 0 and most < left then left = most end
redis.call('SET', KEYS[1], ARGV[3], 'PX', math.max(left, 1))
return 1
