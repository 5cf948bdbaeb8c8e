-- Takes a lock unless it is held or the budget is spent.
--
-- Keys: the lock, and the budget where the action has one: a sorted set of what was admitted, by its moment.
-- Arguments: the lock's value and its window in ms (0: nothing is taken, only looked at); for the budget, how many it admits,
-- in how many ms, and what to count.
-- Answers {0}; {1, ms left, value} where the lock is held; {2, ms left, counted…} where the budget is spent.
local held = redis.call('GET', KEYS[1])
if held then return {1, redis.call('PTTL', KEYS[1]), held} end
local looks = ARGV[2] == '0'
if KEYS[2] then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local most, period = tonumber(ARGV[3]), tonumber(ARGV[4])
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - period)
  local over = redis.call('ZCARD', KEYS[2]) - most
  if over >= 0 then
    -- Where the setting was lowered, more than the oldest must grow old.
    local until_then = redis.call('ZRANGE', KEYS[2], over, over, 'WITHSCORES')[2] + period
    local answer = redis.call('ZRANGE', KEYS[2], 0, -1)
    table.insert(answer, 1, 2)
    table.insert(answer, 2, until_then - now)
    return answer
  end
  if not looks then
    redis.call('ZADD', KEYS[2], now, ARGV[5])
    redis.call('PEXPIRE', KEYS[2], period)
  end
end
if looks then return {0} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {0}
