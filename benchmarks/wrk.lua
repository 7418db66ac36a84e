-- Asks a server for a random line of the file TEXT, one sentence a request:
--   TEXT=FILE wrk -t1 -c32 -d5 --latency -s benchmarks/wrk.lua http://127.0.0.1:8501/v1/models/NAME:predict
-- As a client of LibreTranslate:
--   LANGUAGES=en-de TEXT=FILE wrk -t1 -c32 -d5 --latency -s benchmarks/wrk.lua http://127.0.0.1:8501/translate
local source, target = (os.getenv("LANGUAGES") or ""):match("(%a+)-(%a+)")
local body = '{"inputs": ["%s"]}'
if source then body = '{"q": "%s", "source": "' .. source .. '", "target": "' .. target .. '"}' end
local lines = {}
for line in io.lines(os.getenv("TEXT")) do lines[#lines+1] = line:gsub('\\','\\\\'):gsub('"','\\"') end
math.randomseed(7)
request = function()
  local text = lines[math.random(#lines)]
  return wrk.format("POST", nil, {["content-type"]="application/json"}, (body:format(text)))
end
