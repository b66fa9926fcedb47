#!lua name=headrace_1
-- Token buckets of rate limits. KEYS[1] is always the epoch: the time, in microseconds, from which buckets without a row
-- have filled, and the run of the server that set it. It is missing after the server lost its data.

local MINUTE = 60000000
-- A step back by more than this means that the clock was set.
local OUT_OF_ORDER = 1000000
-- How long a gateway counts as alive, in microseconds.
local ALIVE = 15000000

local function time()
  local now = redis.call('TIME')
  return tonumber(now[1]) * 1000000 + tonumber(now[2])
end

-- What a bucket has left, and the time of that.
local function left_of(key, limit, now, epoch)
  local row = redis.call('HMGET', key, 'left', 'at', 'limit')
  local left, at, known = tonumber(row[1]), tonumber(row[2]), tonumber(row[3])
  if not left then
    left, at, known = 0, math.min(epoch, now), limit
  end
  if at < epoch then
    -- The row is from before a restart, and the server may have lost later ones.
    left, at = math.min(left, 0), math.min(epoch, now)
  end
  if known ~= limit and left > 0 then
    left = left * limit / known
  end
  if now < at then
    if at - now > OUT_OF_ORDER then
      return math.min(left, limit), now
    end
    return math.min(left, limit), at
  end
  return math.min(limit, left + limit * (now - at) / MINUTE), now
end

local function write(key, limit, left, at)
  redis.call('HSET', key, 'left', left, 'at', at, 'limit', limit)
  local until_full = math.ceil((limit - left) / limit * 60000)
  redis.call('PEXPIRE', key, until_full + 60000)
end

local function epoch_of(key)
  local epoch = redis.call('GET', key)
  return epoch and tonumber(string.match(epoch, '^%d+'))
end

local function begin(keys, args)
  local run = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or ''
  local known = redis.call('GET', keys[1])
  if known and string.match(known, ':(%w*)$') == run then
    return known
  end
  local epoch = time()
  if not known and args[1] == '1' then
    epoch = epoch - MINUTE
  end
  known = string.format('%.0f:%s', epoch, run)
  redis.call('SET', keys[1], known)
  return known
end

local function beat(keys, args)
  local now = time()
  redis.call('ZADD', keys[2], now, args[1])
  redis.call('ZREMRANGEBYSCORE', keys[2], '-inf', now - ALIVE)
  -- A clock that was set back leaves gateways in the future.
  redis.call('ZREMRANGEBYSCORE', keys[2], now + ALIVE, '+inf')
  return { redis.call('ZCARD', keys[2]), redis.call('GET', keys[1]) }
end

local function take(keys, args)
  local epoch = epoch_of(keys[1])
  if not epoch then
    return false
  end
  local now, buckets, fits = time(), {}, true
  for i = 2, #keys do
    local limit, needed = tonumber(args[3 * i - 5]), tonumber(args[3 * i - 4])
    local left, at = left_of(keys[i], limit, now, epoch)
    buckets[i] = { limit = limit, left = left, at = at }
    fits = fits and left >= needed
  end
  local answer = {}
  for i = 2, #keys do
    local bucket, wanted = buckets[i], tonumber(args[3 * i - 3])
    local granted = 0
    if fits then
      granted = math.max(0, math.min(wanted, math.floor(bucket.left)))
      write(keys[i], bucket.limit, bucket.left - granted, bucket.at)
    end
    answer[#answer + 1] = granted
    answer[#answer + 1] = math.max(0, math.floor(bucket.left - granted))
  end
  return answer
end

local function change(keys, args)
  local epoch = epoch_of(keys[1])
  if not epoch then
    return false
  end
  local now = time()
  for i = 2, #keys do
    local limit, amount = tonumber(args[2 * i - 3]), tonumber(args[2 * i - 2])
    if limit > 0 then
      local left, at = left_of(keys[i], limit, now, epoch)
      write(keys[i], limit, math.max(-limit, math.min(limit, left + amount)), at)
    end
  end
  return true
end

redis.register_function('headrace_begin_1', begin)
redis.register_function('headrace_beat_1', beat)
redis.register_function('headrace_take_1', take)
redis.register_function('headrace_change_1', change)
