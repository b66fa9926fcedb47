//! Descriptions of the lists of tables in the reference of settings. Must not know how a table is read.

/// `[[models]]`
pub(super) const MODELS: &str = "\
Each table has `name`, and `path` or `targets` or both. With `path` (a Hugging Face directory, a GGUF file, or \
`builtin:demo`), an engine in this process serves the model. Optional keys: `threads`, `kv_memory`, `max_positions`, \
`default_max_tokens`, `device`, `compute`, `kv_type`, `quantize`, `limits`, `tools`, `thinking`, `structured`, \
`parse_special`, `past_answers`, `reply`. With `targets`, a list of `\"UPSTREAM/MODEL\"`, upstreams serve the model. \
Optional keys: `default_max_tokens`, `context_window`, `input`, `limits`, `on_break`, `hedge`, `tools`, `thinking`, \
`structured`, `parse_special`, `past_answers`, `reply`. With `targets` and `path`, targets of kind `vllm`, `sglang` \
and `llamacpp` receive token ids. Headrace then reads tokenizer, template and configuration from the path, but never \
the weights. \
`reply` names the format in which the model writes tool calls, if the template does not show the format: `hermes`, \
`qwen3_coder`, `llama3_json`, `pythonic`, `mistral_array`, `mistral`, `deepseek_v3`, `deepseek_v31`, `deepseek_v32`, \
`deepseek_v4`, `harmony`, `granite`, `glm45`, `kimi_k2`, `minimax_m2`, `functiongemma`, `gemma4`, `olmo3`, \
`phi4mini`, `cohere_command`, `seed_oss`, `ernie45`, `hunyuan`, `hunyuan_opensource`, `hunyuan_a13b`, `minimax_m3`, \
`kimi_k3`, `step3`, `mimo`, `apertus`, `longcat`, `longcat_pairs`, `json`, or `plain` for none. \
`on_break` applies if an answer breaks off in the middle and no worker can continue the same answer seamlessly. With \
`error` (the default), the answer ends with an error. With `continue`, another target continues the answer in its \
own way; the stream and the trace show the position. Targets that receive token ids continue from the tokens. Of the \
targets that receive messages, `vllm`, `sglang` and `anthropic` (but not its newer models) continue from the text of \
a stream without tools, stop strings and the like. Headrace reads and rewrites such streams, so unknown fields are \
not passed on. \
`hedge = { after = \"p95\", share = 0.05 }` sends a second copy of a call to another target if the call has waited \
longer for its first token than 95 of 100 calls of the other targets. At most 5 of 100 calls are copied. The first \
target to answer wins. The other call is cancelled, and you pay its cost. \
`tools.order` sets the order in which a model sees the properties of tools: `sent` (the default) keeps the caller's \
order, because the order carries meaning; `canonical` sorts them, so that callers with different orders share cached \
prefixes. \
`structured.invalid` applies if a finished answer is not JSON of the requested schema. With `refuse` (the default), \
the answer is refused, and a stream ends with an error. With `retry`, a whole answer is requested up to twice more, \
within the retry budget. With `pass`, the answer is returned without a check. \
`thinking = { low = 1024, high = 8192 }` sets the maximum number of reasoning tokens per effort (`minimal`, `low`, \
`medium`, `high`, `xhigh`, `max`), for calls that name no number. `last_words` is the text that ends reasoning at \
the maximum; its tokens count towards the maximum. \
`parse_special` lists ids of keys, `[\"key_…\"]`, or is `\"all\"`. Raw prompts (`/v1/completions`) with these keys \
may contain spelt-out control tokens, if the call asks for that. Such a prompt can end its own turn, so by default \
no key may use control tokens. \
`past_answers` sets how a prompt encodes earlier answers if their text would give other tokens than the generated \
tokens. With `generated` (the default), the generated tokens are used, within an hour and within bounds of memory, \
so that a conversation continues from its cached prefix. With `text`, only the text is used. Calls that name a \
`seed` always use the text. \
`input = [\"text\", \"image\"]` lists the inputs of a model that receives messages (`document`, `audio` and `video` \
too). Headrace refuses other parts and names their position. Without `input`, the model's servers decide. \
`shadow` is a table, for models of either kind: Headrace also sends copies of a `share` (0.1: one in ten) of the \
calls to the `model` in the table. Callers are not charged for copies, and all copies together cost at most the \
`budget` (`\"$5/day\"`, `\"$0.50/hour\"`, at list prices). With `compare = false`, no answer is stored for a \
comparison. `in_flight` (4) and `queue` (64) limit the running and the waiting copies. \
`retires` (a day such as `\"2027-01-31\"`) announces the end of the name in answers (`deprecation`, `sunset`, \
`link`). `deprecated` (a day) is the start of the deprecation, `successor` the name to use instead, and `page` the \
address of the announcement. From the day of `retires` on, calls are refused; with `after = \"move\"`, calls go to \
the successor.";

/// `[[upstreams]]`
pub(super) const UPSTREAMS: &str = "\
Each table has `name`, `kind` (`openai`, `anthropic`, `vllm`, `sglang`, `llamacpp`, `headrace`), `url` and optional \
keys. If the host of `url` has several addresses, each address is a server with its own load, breaker, bounds and \
row in `headrace upstreams`. The addresses of a provider on the public internet count as one server. \
`region` is the location, such as `\"eu\"`; calls that are pinned to regions go only to upstreams in these regions. \
With `serve = true`, every model that the upstream lists is served as `NAME/MODEL`. `price` is a table with the keys \
of `[[prices]]`, for models of the upstream without a price. `key_file` holds the API key. `secret_file` holds the \
secret of another Headrace server, as in its `worker.secret_file`; the engines of that server then receive jobs of \
token ids. `headers` is a table of headers. `ca_file` (PEM) holds authorities to trust in addition to those of this \
machine. `proxy` is the address of a proxy; the variables HTTPS_PROXY, https_proxy and ALL_PROXY are not used. \
`http2` is `auto`, `off` or `always`. \
`connect_timeout`, `head_timeout`, `whole_timeout` and `idle_timeout` are the timeouts. `head_timeout` applies to a \
stream. `whole_timeout` applies to an answer in one piece, and to an event while only comments arrive. \
`max_in_flight`, `queue`, `queue_wait` and `idle_connections` are the bounds. `load_every` is the interval at which \
a server of kind `vllm`, `sglang` or `llamacpp` is asked for its load (default `\"1s\"`; `\"0s\"` for never). \
`kv_events` and `kv_replay` are addresses such as `\"tcp://10.0.0.7:5557\"`. There a server of kind `vllm` or \
`sglang` publishes and replays the events of its prefix cache, and Headrace chooses its models by their cached \
prefixes. `abandoned` applies to an answer if the client disconnects: `abort` (the default) ends the answer, and \
`drain` reads the rest to learn the usage. `responses` sets how `/v1/responses` is sent: `translate` (the default) \
sends a chat; `pass` sends the call itself, to servers that support the endpoint, if all targets of a model do. \
`urls` sets which addresses in calls may be passed to the server, because the server fetches them itself: `off`, \
`public` (`https` to public hosts), or a list of hosts such as `[\"cdn.example.com\", \"*.example.org\", \
\"http://assets.internal\"]`. The default is `public`, but `off` for the kinds `vllm`, `sglang` and `llamacpp` and \
for servers at private addresses. Data in the body (`data:`) always passes. `cache_shared` sets what callers see of \
a prefix cache that the server does not separate by tenant. `hide` (the default) counts cached tokens as uncached in \
answers and bills if there are several organisations; `disclose` reports them. `allow_unpriced` lists extras that \
callers may request although Headrace holds and charges nothing for them, such as `[\"web_fetch\", \
\"service_tier\"]`.";

/// `[[prices]]`
pub(super) const PRICES: &str = "\
Each table has `model`, `input`, `output` and optional keys. Prices are dollars in quotes (`\"0.10\"`). \
`cached_input`, `cache_write` (cache writes of OpenAI, and of Anthropic for 5 minutes), `cache_write_1h` and \
`reasoning` are further prices. If one is absent, its tokens cost the `input` or `output` price, and those of \
`cache_write_1h` the `cache_write` price. `per_search` is the price, in dollars, of each search of the provider's \
own web search; without this price, calls that ask for web search are refused. `per` is `\"million\"` tokens (the \
default) or `\"thousand\"`. `from` is a UTC date (`\"2026-11-05\"`). \
Further tables of a model may have `above` and `tier`. `above = 272000` applies to all tokens of calls with more \
prompt tokens than that. `tier` (`flex`, `batch`, `priority`) is the class of service that the upstream reports as \
billed, or else the class that the caller asked for. If no such table matches, the table without `above` and `tier` \
applies. A hold covers the highest price that could apply. `holder_tier = \"gold\"` makes the prices of a table those of \
callers whose key, project or organisation has this tier (`headrace tiers`); the nearest tier with prices for the model \
counts. All other callers have the prices of the tables without it, which must be there.";

/// `[[budgets]]`
pub(super) const BUDGETS: &str = "\
Each table has `name`, `limit` and optional keys. `measure` is what counts: `dollars` (the default; `limit` is in \
quotes), `tokens` or `requests`. `per` is the window: `hour`, `day`, `week` (from Monday), `month` (the default) or \
`total`, by the calendar of `zone` (`\"UTC\"`; any IANA time zone). Each `key`, `user`, `project`, `org` or `model` \
within an organisation has a counter of its own, as `each` says (`org`); `only` names a single one. `org` and `tier` \
restrict the budget to an organisation, or to holders of a tier. `alerts = [50, 80, 100]` raises an alert once per \
window at each percentage of the limit. `soft = true` raises alerts and refuses nothing. All gateways over one \
database should have the same budgets.";

/// `[[free_tiers]]`
pub(super) const FREE_TIERS: &str = "\
Each table has `name`, `limit` and optional keys. `limit` is what is free of charge in a window; `measure` is what \
counts: `dollars` (the default; `limit` is in quotes), `tokens` or `requests`. `per` is the window: `hour`, `day` (the \
default), `week` (from Monday), `month` or `total`, by the calendar of `zone` (`\"UTC\"`; any IANA time zone). Each \
`key`, `user`, `project` or `org` has a free amount of its own, as `each` says (`org`); `only` names a single one. `org` \
and `tier` restrict it to an organisation, or to holders of a tier. `models = [\"a\", \"b\"]` restricts it to calls of \
these models. All gateways over one database should have the same free tiers.";

/// `[[costs]]`
pub(super) const COSTS: &str = "\
Each table has `upstream`, `model` (the upstream's name for the model) and the other keys of `[[prices]]`. Every \
attempt of a call has a cost, also a failed attempt. The cost follows the usage that the upstream reports, or an \
estimate if the upstream reports none. `headrace trace` and `headrace margin` show costs to operators. Callers never \
see costs.";

/// `[[routes]]`
pub(super) const ROUTES: &str = "\
Each table has `name`, `to` and optional keys. `to` lists models with their weights: `{ model = \"a\", weight = 95 \
}`, or a name alone. `canary` in such an entry is `true` or a table. A canary gets no more calls once it is worse \
than the models without `canary`. It is worse if its share of failed calls is greater by more than `errors` (0.01), \
if its share of calls with refused content is greater by more than `refusals` (0.02), or if the 95th percentile of \
its times to the first token is more than `first_token` (1.5) times as long. The comparison covers a `window` \
(`\"30m\"`) with at least `min_calls` (40) calls of the canary. \
`sticky` sets what always uses the same model: `none`, `key` (the default), `user` or `conversation`. `seed` is a \
number; another number changes every choice. `fallbacks` has lists of models that answer instead if a model fails \
before any part of the answer was sent: `context_too_long`, `overloaded` (also a 429 of the model's server), \
`failed` and `content_refused`. If a model fails, the other models of `to` follow after these lists. \
A route may mix engines, upstreams that receive token ids and upstreams that receive messages: the call is rendered \
or translated again. A model that cannot take the call is skipped, and the trace shows the reason. `shadow`, and \
`retires` with its related keys, work as in `models` and take precedence over those of the answering model.";

/// `[[identity.issuers]]`
pub(super) const ISSUERS: &str = "\
Each table has `issuer`, `audiences`, `rules` and optional keys. `issuer` is the `iss` of the provider's JWTs, exactly \
as written there. Its keys are found by discovery at `issuer` and `/.well-known/openid-configuration`, or at \
`jwks_url`. `audiences` lists the names that the provider writes into `aud` for this server; a token must have one of \
them. `audience_claims` lists the claims in which they may be (`[\"aud\"]`); add `\"azp\"` or `\"client_id\"` for \
providers that write no `aud`. `ca_file` is a PEM file of further authorities for connections to the provider. \
`max_key_age` (`\"24h\"`) bounds how long known keys are used while the provider cannot be reached. \
`unknown_users` is what happens to the token of a user without a record: `create` (the default) makes a record, which \
`headrace users` lists with the last use, `accept` makes none, and `refuse` accepts only users whom SCIM or an operator \
has created. \
`rules` is a list of tables, and the first that matches decides. `when` is a table of claims and values, such as `{ \
groups = [\"research\", \"staff\"] }`: the claim must be one of the values, or a list with one of them. A claim within \
another is written with dots, such as `\"realm_access.roles\"`. A rule names its project by `project`, or by \
`project_claim`, the claim that holds it; `projects` then lists the projects that the claim may name. `org` or \
`org_claim` is the organisation that the project must belong to. `models` lists the models that the token may use, \
without it all; `models_claim` is a claim that narrows them. `role` or `role_claim` is shown in traces. \
`requests_per_minute`, `tokens_per_minute` and `concurrency` limit each user; without them the limits of new keys \
apply (`limits.key`). Organisations and projects must exist (`headrace orgs`, `headrace projects`).";
