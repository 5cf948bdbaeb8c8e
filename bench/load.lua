-- What wrk sends, and how it counts the answers. Settings come from the environment:
--
--   SHAPE     product | express
--   OP        signin    viewers one after the other
--             viewer    one member's reads, members at random
--             transfer  from one random member to another
--             hot       from random members to one
--             nothing   one member asks for nothing
--             flood     one member claims the daily bonus
--             replay    one member sends the same transfer with the same key
--             notice    a payment provider tells of payments that succeeded, each once
--   TOKENS    a file with one bearer token a line; line N is that of member PREFIX .. N
--   PREFIX    what members' names begin with
--   DOCUMENT  the GraphQL document
--   NOTICES   notice: a file with one signed message a line: id, timestamp, signature and body, with tabs between them
--   START     signin, notice: how many were sent before
--
-- The last line that it prints is read by bench/measure.py: accepted, cooldown and other answers, seconds, p50 and p99 in ms.
local shape, op = os.getenv("SHAPE") or "product", os.getenv("OP")
local prefix, document = os.getenv("PREFIX") or "", os.getenv("DOCUMENT") or ""
local threads = {}

function setup(thread)
  thread:set("place", #threads)
  table.insert(threads, thread)
end

local tokens = {}

function init()
  for line in io.lines(os.getenv("TOKENS")) do tokens[#tokens + 1] = line end
  if op == "notice" then
    notices, number = {}, 0
    for line in io.lines(os.getenv("NOTICES")) do
      -- Two threads: one takes the even lines, the other the odd ones.
      if number % 2 == place then notices[#notices + 1] = line end
      number = number + 1
    end
  end
  math.randomseed(os.time() * 7 + place * 1000003)
  -- Globals, because done() reads them from another thread.
  accepted, cooldown, other, surprise = 0, 0, 0, nil
  run = os.time() .. "-" .. place .. "-"
  sent = math.floor((tonumber(os.getenv("START")) or 0) / 2)
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n" }
local query = document:gsub('["\\\n]', escapes)

local function sender()
  if op == "flood" or op == "nothing" or op == "replay" then return 1 end
  -- Two threads: one takes the even members, the other the odd ones.
  if op == "signin" then return (sent * 2 + place) % #tokens + 1 end
  return math.random(#tokens)
end

local function recipient(from)
  local to = op == "hot" and 7 or op == "replay" and 2 or math.random(#tokens)
  return to == from and from % #tokens + 1 or to
end

local function post(path, from, body)
  local headers = { ["Content-Type"] = "application/json", ["Authorization"] = "Bearer " .. tokens[from] }
  return wrk.format("POST", path, headers, body)
end

local function notice()
  local id, timestamp, signature, body = notices[sent]:match("([^\t]*)\t([^\t]*)\t([^\t]*)\t(.*)")
  local headers = { ["webhook-id"] = id, ["webhook-timestamp"] = timestamp, ["webhook-signature"] = signature }
  return wrk.format("POST", "/webhooks/funding/bench", headers, body)
end

function request()
  sent = sent + 1
  if op == "notice" then return notice() end
  local from = sender()
  if shape == "express" then return post("/claim-daily", from, "{}") end
  if op ~= "transfer" and op ~= "hot" and op ~= "replay" then
    return post("/graphql", from, '{"query":"' .. query .. '"}')
  end
  local key = op == "replay" and "the-same-key" or run .. sent
  local input = string.format('{"to":"%s%d","amount":"10","currency":"PTS","idempotencyKey":"%s"}', prefix, recipient(from), key)
  return post("/graphql", from, '{"query":"' .. query .. '","variables":{"input":' .. input .. "}}")
end

function response(status, _, body)
  if status == 429 or body:find("COOLDOWN_ACTIVE", 1, true) then
    cooldown = cooldown + 1
  elseif status >= 400 or op == "notice" and body ~= '{"status":"credited"}' or body:find('"errors":', 1, true) or body:find('"userErrors":[{', 1, true) then
    other = other + 1
    surprise = surprise or (status .. " " .. body:sub(1, 300))
  else
    accepted = accepted + 1
  end
end

function done(summary, latency)
  local sum = { accepted = 0, cooldown = 0, other = 0 }
  for _, thread in ipairs(threads) do
    for name in pairs(sum) do sum[name] = sum[name] + thread:get(name) end
    if thread:get("surprise") then io.write("other: " .. thread:get("surprise") .. "\n") end
  end
  io.write(string.format("counted %d %d %d %.3f %.3f %.3f\n", sum.accepted, sum.cooldown, sum.other,
    summary.duration / 1e6, latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
