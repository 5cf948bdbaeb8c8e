-- Deletes a lock if it is still the token's, and counts its attempt no more. A comparison and a deletion in two commands
-- could delete another's.
--
-- Keys: the lock, and the budget where the action has one. Arguments: the token, and what was counted.
if KEYS[2] then redis.call('ZREM', KEYS[2], ARGV[2]) end
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
