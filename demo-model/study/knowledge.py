"""What the model knows about calls of LLM APIs and about Headrace: intents, each with one answer and many ways to ask.

An intent is (id, answer, train questions, held-out questions).  Topics of `facts.py` give four intents each, asked by templates over the
topic's names; `SINGLE` gives the others, with questions of their own around which `around` puts more words."""
from facts import T, PIPE, CMP
from values import expand, cap
import random, re


class _First(random.Random):
    """Chooses the first of everything: the canonical answer."""
    def choice(self, xs): return xs[0]


PICK = _First()
def canon(text): return expand(text, PICK)


NAMES = {  # what a topic is called in questions, where `facts.py` has names that are topics of their own
    "sampling": ["sampling", "token sampling"], "ratelimit": ["rate limiting", "a rate limit"], "stop": ["the stop condition", "the finish reason"],
    "kv": ["the KV cache", "a KV cache", "KV caching", "the key value cache", "the kv cache"], "lb": ["the load balancer", "a load balancer", "load balancing"], "gateway": ["the API gateway", "an API gateway", "the gateway", "a gateway"],
    "template": ["the chat template", "a chat template", "chat templates"], "context": ["the context window", "a context window", "context length"], "queue": ["the scheduler", "a scheduler", "the request queue", "queueing"], "prefix": ["prefix caching", "prompt caching", "the prefix cache", "a prefix cache"],
    "billing": ["billing", "usage"], "retry": ["a retry", "retrying"], "tokenize": ["tokenization", "the tokenizer", "a tokenizer"]}
WHAT = ["What is $n?", "what is $n", "What's $n?", "[Explain|Describe|Define] $n.", "[explain|describe|define] $n", "Tell me about $n.", "[Can|Could] you explain $n?", "What does $n mean?",
        "I keep hearing about $n. What is it?", "[Please explain|Help me understand] $n.", "What do you know about $n?", "What do people mean by $n?", "Briefly, what is $n?",
        "In short, what is $n?", "Explain $n [briefly|simply|in one sentence|in simple words].", "What [exactly is|is meant by] $n?", "Hi, what is $n?", "Hello! What is $n?", "So what is $n?", "$n?", "what $n is",
        "$n, what is that?", "I do not [know|understand] what $n is.", "Give me a short explanation of $n.", "Question: what is $n?", "Do you know what $n is?",
        "Say what $n is.", "What would be a definition of $n?", "Give me the definition of $n.", "A definition of $n, please.", "How would you define $n?", "I want to understand $n.", "I'd like to know what $n is.", "Teach me what $n is.", "Teach me $n.", "Could you say what $n is?", "Can you tell me what $n is?", "Please tell me about $n.", "Tell me what $n [is|means].", "I want to learn about $n.", "What sort of thing is $n?", "What is $n, please?", "Would you explain $n?", "I have a question about $n: what is it?", "~What would you say $n is?", "~Give me a definition of $n.", "~I'd like to understand $n.", "~Teach me about $n, please.", "~Could you tell me what $n is?"]
WHY = ["Why is $n important?", "Why does $n matter?", "Why do we need $n?", "What is the point of $n?", "Why should I care about $n?", "why $n?", "Why $n?", "What is $n good for?", "What is the [use|benefit|purpose] of $n?",
       "Why is $n [useful|needed]?", "Why would I want $n?", "Tell me why $n matters.", "What do I get from $n?", "What do we gain with $n?", "Why is there $n?", "Why do servers have $n?", "Explain why we need $n.", "Explain why $n matters.", "Explain the point of $n.", "Why does anybody need $n?", "What does $n help with?", "Tell me why $n is important.", "What does one gain with $n?", "What makes $n important?", "For what do we need $n?", "Is $n important? Why?", "~What do I gain from $n?", "~Why is there $n at all?", "~Explain why $n is important."]
HOW = ["How does $n work?", "how does $n work", "What happens during $n?", "How does $n work in an LLM server?", "How is $n done?", "Explain how $n works.", "Tell me how $n works.", "[Can|Could] you explain how $n works?",
       "What are the details of $n?", "How does $n actually work?", "Describe the way $n works.", "Describe the details of $n.", "In which way does $n work?", "I want to know the details of $n.", "I want to understand how $n works.", "Show me how $n works.", "What is the way $n works?", "Please explain how $n works.", "How exactly does $n work?", "I would like to know how $n works.", "Tell me more about how $n works.", "~Describe how $n works.", "~In what way does $n work?", "~I want to know how $n works."]
LIKE = ["Explain $n with an analogy.", "What is $n like in everyday life?", "Explain $n to a child.", "Explain $n like I am five.", "Give me an analogy for $n.", "What can I compare $n to?", "Give me a picture for $n.",
        "Is there an analogy for $n?", "Explain $n as you would to a child.", "Explain $n to me as to a small child.", "I need an everyday picture of $n.", "Explain $n as if I knew nothing.", "Do you have an analogy for $n?", "What in everyday life is like $n?", "Compare $n with something from everyday life.", "~Is there an everyday analogy for $n?", "~Explain $n as if I were a child."]
MORE = {"why": ["Why does it matter?", "Why?", "Why is that important?", "And why?", "What is it good for?", "Why do we need it?", "Why does that matter?", "Why is that useful?", "What is that good for?", "Why should I care?", "And why is it important?", "And why do we need that?", "What is the use of it?", "Tell me why.", "~Why is it useful?", "~And why does it matter?"],
        "how": ["How does it work?", "And how does that work?", "How?", "Tell me more.", "Go on.", "Say more about it.", "More details, please.", "How does it work exactly?", "How exactly?", "Can you say more?", "Can you tell me more?", "Tell me more about it.", "Tell me more about that.", "I want to know more.", "And how does it work?", "Explain how it works.", "~How does that work exactly?", "~Can you tell me more about it?"],
        "like": ["Can you give me an analogy?", "I do not get it. Use a simple picture.", "Explain it to a child.", "An analogy, please.", "What is it like?", "Explain it with an analogy.", "Give me an analogy.", "Give me a picture.", "Explain that like I am five.", "A picture for that, please.", "Is there an analogy for it?", "Explain it simply, with a picture.", "~Explain that with an analogy.", "~Give me a picture of it."]}
SWITCH = ["And what is $n?", "What about $n?", "Now explain $n.", "And $n?", "OK. What is $n?", "Thanks. And what is $n?", "How about $n?", "And $n, what is that?", "Next question: what is $n?", "Now $n.", "Next, explain $n.", "Then what is $n?", "~And how about $n?", "~Next: $n."]


def names(key): return NAMES.get(key, T[key]["n"])


def topic_answer(key, way):
    x = T[key]
    if way == "what": return canon(x["d"][0]) + " " + canon(x["f"][0])
    if way == "why": return canon(x["w"][0])
    if way == "how": return " ".join(canon(f) for f in x["f"][:3])
    return canon(x["a"])


ASK = {"what": WHAT, "why": WHY, "how": HOW, "like": LIKE}
HELD_TOPIC = {}

# One answer; the questions are told apart by what they ask for. `~` marks what only the evaluation asks.
SINGLE = [
 ("call", None, ["What happens when I call an LLM API?", "what happens when i call an llm api", "What happens [during|in] an LLM API call?", "Walk me through an LLM API call.", "Explain step by step what happens when I call an LLM API.", "How does an LLM API call work?", "How does a chat completion request work?", "Describe the [life|path] of a request to a language model API.", "What are the [steps|stages] of an LLM API call?", "What happens to my request?", "What happens between my request and the [first token|answer]?", "Which stages does a call go through?", "~What goes on when somebody calls an LLM API?", "~Take me through the stages of an LLM call."]),
 ("headrace", "Headrace is the whole path of an LLM API call in one program: gateway, engine, bill and trace.", ["What is Headrace?", "what is headrace", "Tell me about Headrace.", "What does Headrace do?", "Explain Headrace.", "What is this program?", "What is this server?", "Describe Headrace.", "~Can you tell me what Headrace is?", "~What kind of program is Headrace?"]),
 ("hname", "A headrace is the channel that carries water to a mill wheel.", ["Why is it called Headrace?", "Where does the name Headrace come from?", "What does the word headrace mean?", "What is a headrace?", "~Where did Headrace get its name?"]),
 ("llm", "An LLM is a large language model: a network that predicts the next token of a text.", ["What is an LLM?", "what is an llm", "What does LLM [mean|stand for]?", "What is a large language model?", "Explain what an LLM is.", "What is a language model?", "Hi, what is an LLM?", "~Define LLM.", "~Could you explain what a language model is?"]),
 ("api", "An API is the set of requests that a program accepts from other programs.", ["What is an API?", "what is an api", "What does API [mean|stand for]?", "Explain what an API is.", "~Define API."]),
 ("llmapi", "An LLM API takes your messages over HTTP and sends back the text that a model writes.", ["What is an LLM API?", "what is an llm api", "What does an LLM API do?", "Explain LLM APIs.", "~Tell me what an LLM API is."]),
 ("prompt", "A prompt is the text that the model reads before it writes its answer.", ["What is a prompt?", "what is a prompt", "What does prompt mean?", "Explain what a prompt is.", "~Define the word prompt."]),
 ("token", "A token is a small piece of text, such as a short word or a part of a word.", ["What is a token?", "what is a token", "What are tokens?", "Explain tokens.", "What does token mean?", "Hi, what is a token?", "~Define token.", "~Tell me what tokens are."]),
 ("tokenchars", "In English a token is about four characters long.", ["How long is a token?", "How many characters are in a token?", "How many characters does a token have?", "How big is a token?", "~What is the usual length of a token?"]),
 ("temperature", "Temperature controls how random the choice of the next token is. At 0 the likeliest token is always taken.", ["What is temperature?", "what is temperature", "What does temperature do?", "What does the temperature parameter do?", "Explain temperature.", "What is the temperature of a model?", "~How does temperature change the answer?", "~Tell me about the temperature setting."]),
 ("temp0", "Use temperature 0: then the likeliest token is always taken and the answer repeats.", ["How do I get the same answer every time?", "How can I make answers repeatable?", "Which temperature gives the same answer each time?", "How do I make the model deterministic?", "~How do I get repeatable answers?"]),
 ("topp", "Top-p keeps only the smallest set of tokens whose probabilities add up to p.", ["What is top-p?", "what is top p", "What does top_p do?", "Explain top-p.", "What is nucleus sampling?", "~What does top-p mean?"]),
 ("topk", "Top-k keeps only the k likeliest tokens before one is drawn.", ["What is top-k?", "what is top k", "What does top_k do?", "Explain top-k.", "~What does top-k mean?"]),
 ("seed", "A seed fixes the random numbers, so the same call gives the same answer again.", ["What is a seed?", "What does seed do?", "What does the seed parameter do?", "Explain the seed.", "~What is the seed for?"]),
 ("maxtokens", "max_tokens is the most tokens that the answer may have.", ["What is max_tokens?", "What does max_tokens do?", "How do I limit the length of an answer?", "How can I make answers shorter?", "Explain max_tokens.", "~What is the max_tokens parameter for?"]),
 ("systemmsg", "A system message tells the model how to behave in the whole conversation.", ["What is a system message?", "What is a system prompt?", "What does the system message do?", "Explain the system message.", "~What is the system role for?"]),
 ("roles", "Messages have the roles system, user, assistant and tool.", ["Which roles do messages have?", "What roles are there?", "What are the message roles?", "Which roles exist in a chat?", "~Name the roles of messages."]),
 ("sse", "Server-sent events are small text messages that a server sends over one open HTTP response.", ["What are server-sent events?", "What is SSE?", "what is sse", "What does SSE mean?", "Explain server-sent events.", "~Define SSE."]),
 ("outcost", "Output tokens cost more because each one needs its own step, while input tokens are read together.", ["Why do output tokens cost more than input tokens?", "Why are output tokens more expensive?", "Why is output dearer than input?", "Why do completion tokens cost more?", "~Why is the price of output tokens higher?"]),
 ("slowfirst", "The first token waits for the network, the queue and the prefill. The others only need one decode step each.", ["Why is the first token slow?", "Why is the first token slow but the rest fast?", "Why does the first token take so long?", "Why do I wait before the answer starts?", "~Why does it take long until the first token?"]),
 ("cachedcheap", "Cached tokens are cheaper because their keys and values need not be computed again.", ["Why are cached tokens cheaper?", "Why do cached tokens cost less?", "Why is cached input cheaper?", "~What makes cached tokens cheap?"]),
 ("cachemiss", "A cache miss means that the start of the prompt differs from what was cached. Keep the start the same and put what changes at the end.", ["Why did I miss the cache?", "Why was my prompt not cached?", "What is a cache miss?", "Why is there no cache hit?", "~What causes a cache miss?"]),
 ("cachehit", "Put what stays the same at the start of the prompt and what changes at the end.", ["How do I get more cache hits?", "How can I use the prompt cache well?", "How do I improve my cache hit rate?", "~How can I make the cache hit more often?"]),
 ("cheaper", "Send a shorter prompt, ask for fewer tokens, keep the start of the prompt the same, or use a smaller model.", ["How can I make calls cheaper?", "How do I save money?", "How can I lower my bill?", "How do I reduce the cost of a call?", "~What can I do to pay less?"]),
 ("faster", "Send a shorter prompt, ask for fewer tokens, stream the answer, or use a smaller model.", ["How can I make calls faster?", "How do I reduce latency?", "How can I speed up my call?", "Why is my call slow?", "~What can I do about slow calls?"]),
 ("inout", "Input tokens are those of the prompt, and output tokens are those of the answer.", ["What are input and output tokens?", "What is the difference between input and output tokens?", "What is the difference between prompt tokens and completion tokens?", "~How do input and output tokens differ?"]),
 ("streamon", "Set stream to true in the request.", ["How do I turn on streaming?", "How do I stream an answer?", "How can I get the answer piece by piece?", "How do I enable streaming?", "~How do I switch streaming on?"]),
 ("apikey", "An API key is a secret that tells the server who is calling.", ["What is an API key?", "what is an api key", "What is an API key for?", "Explain API keys.", "Why do I need an API key?", "~What does an API key do?"]),
 ("keysend", "Send it in the header Authorization: Bearer KEY.", ["How do I send my API key?", "Where do I put my API key?", "How do I use my API key?", "Which header has the API key?", "~Where does the API key go?"]),
 ("e400", "Status 400 means that the request is wrong. Change it before you try again.", ["What does status 400 mean?", "What is error 400?", "Why do I get a 400?", "What does HTTP 400 mean?", "~I got a 400, what does it mean?"]),
 ("e401", "Status 401 means that the API key is missing or not known.", ["What does status 401 mean?", "What is error 401?", "Why do I get a 401?", "What does HTTP 401 mean?", "~I got a 401, what does it mean?"]),
 ("e402", "Status 402 means that there is not enough money for the call.", ["What does status 402 mean?", "What is error 402?", "Why do I get a 402?", "What does HTTP 402 mean?", "~I got a 402, what does it mean?"]),
 ("e403", "Status 403 means that the key may not do this.", ["What does status 403 mean?", "What is error 403?", "Why do I get a 403?", "What does HTTP 403 mean?", "~I got a 403, what does it mean?"]),
 ("e404", "Status 404 means that the model or the path does not exist for this key.", ["What does status 404 mean?", "What is error 404?", "Why do I get a 404?", "What does HTTP 404 mean?", "~I got a 404, what does it mean?"]),
 ("e429", "Status 429 means that a limit is reached. Wait for the time in Retry-After and try again.", ["What does status 429 mean?", "What is error 429?", "Why do I get a 429?", "What does HTTP 429 mean?", "What should I do after a 429?", "~I got a 429, what does it mean?"]),
 ("e500", "Status 500 means a fault in the server. What was not delivered is not charged.", ["What does status 500 mean?", "What is error 500?", "Why do I get a 500?", "What does HTTP 500 mean?", "~I got a 500, what does it mean?"]),
 ("e503", "Status 503 means that the server is full, starting or stopping. Try again after the time in Retry-After.", ["What does status 503 mean?", "What is error 503?", "Why do I get a 503?", "What does HTTP 503 mean?", "~I got a 503, what does it mean?"]),
 ("retryafter", "Retry-After is a header that says how many seconds to wait before you try again.", ["What is Retry-After?", "What does the Retry-After header mean?", "What does Retry-After say?", "How long should I wait after a refusal?", "~What is the Retry-After header for?"]),
 ("up", "Run headrace up. It starts a working API with the demo model and prints a key.", ["How do I start Headrace?", "How do I run Headrace?", "What does headrace up do?", "How do I start the server?", "How do I start a server with the demo model?", "What is headrace up?", "~Which command starts Headrace?"]),
 ("serve", "headrace serve starts a server from a configuration file.", ["What does headrace serve do?", "How do I start the server with a configuration file?", "What is headrace serve?", "~What is the serve command for?"]),
 ("chat", "Run headrace chat. It talks to a model in the terminal.", ["What does headrace chat do?", "How do I chat in the terminal?", "How do I talk to a model in the terminal?", "What is headrace chat?", "~Which command opens a chat?"]),
 ("trace", "Run headrace trace. It shows where the time and the money of a call went.", ["What does headrace trace do?", "How do I see why a call was slow?", "How do I see where the time went?", "What is headrace trace?", "How do I look at a trace?", "~Which command shows a trace?"]),
 ("whatrace", "A trace lists every stage of a call with its time, its tokens and its cost.", ["What is a trace?", "what is a trace", "What is in a trace?", "Explain traces.", "~What does a trace contain?"]),
 ("slowest", "Run headrace trace --slowest. It lists the slowest calls of the last day.", ["How do I find the slowest calls?", "Which calls were slow?", "How do I list slow calls?", "~Which command lists the slowest calls?"]),
 ("lasttrace", "Run headrace trace --last. It shows the last call.", ["How do I see the last call?", "How do I look at my last request?", "Where do I see the latest trace?", "~Which command shows the last call?"]),
 ("keyscreate", "Run headrace keys create. The secret is shown once.", ["How do I create an API key?", "How do I make a new key?", "How do I get an API key in Headrace?", "Which command creates a key?", "~How can I add a new API key?"]),
 ("keysrevoke", "Run headrace keys revoke. The key is dead at once.", ["How do I revoke a key?", "How do I delete an API key?", "How do I disable a key?", "My key leaked. What should I do?", "~Which command revokes a key?"]),
 ("keyslist", "Run headrace keys list. It shows keys without their secrets.", ["How do I list my keys?", "How do I see all API keys?", "Which keys are there?", "~Which command lists the keys?"]),
 ("credit", "Run headrace credit grant. It adds money to the balance of an organisation.", ["How do I add money?", "How do I add credit?", "How do I grant credit?", "How do I top up a balance?", "~Which command adds credit?"]),
 ("creditshow", "Run headrace credit show. It shows balances and budgets.", ["How do I see my balance?", "How much money is left?", "How do I check the balance?", "Where do I see the credit?", "~Which command shows the balance?"]),
 ("budget", "Run headrace budget set. It sets the most that a project may spend.", ["How do I set a budget?", "How do I limit what a project spends?", "How can I cap the spending of a team?", "~Which command sets a budget?"]),
 ("whatbudget", "A budget is the most that a project may spend in a time.", ["What is a budget?", "what is a budget", "Explain budgets.", "~Define budget."]),
 ("ledger", "The ledger is the book of all money: what was granted, held, charged and given back.", ["What is the ledger?", "what is the ledger", "What does the ledger do?", "Explain the ledger.", "~Tell me about the ledger."]),
 ("verify", "Run headrace ledger verify. It checks every rule of the books and prints totals.", ["How do I check the ledger?", "How do I verify the books?", "What does headrace ledger verify do?", "~Which command verifies the ledger?"]),
 ("hold", "A hold reserves the most that a call can cost. The unused part is given back at the end.", ["What is a hold?", "what is a hold", "What does hold mean?", "Why is money held?", "Explain holds.", "~Tell me what a hold is."]),
 ("settle", "Settling turns a hold into the true charge and gives the rest back.", ["What is settling?", "What does settle mean?", "What happens to a hold at the end?", "Explain settlement.", "~What is a settlement?"]),
 ("config", "Run headrace config check. It shows every value, where it comes from, and every fault.", ["How do I check my configuration?", "What does headrace config check do?", "How do I see all settings?", "~Which command checks the configuration?"]),
 ("reload", "Run headrace reload. The server reads its configuration again without dropping a call.", ["How do I reload the configuration?", "How do I change settings without a restart?", "What does headrace reload do?", "~Which command reloads the configuration?"]),
 ("bench", "Run headrace bench. It measures a server under load.", ["What does headrace bench do?", "How do I measure a server?", "How do I load test my server?", "How do I benchmark a server?", "~Which command measures a server?"]),
 ("models", "Run headrace up --model PATH with a Hugging Face directory or a GGUF file.", ["How do I serve my own model?", "How do I use another model?", "How do I load a GGUF file?", "How do I run Qwen3 with Headrace?", "~How can I serve a model of my own?"]),
 ("inspect", "Run headrace models inspect. It shows what a checkpoint holds and the memory it needs.", ["How do I see what is in a checkpoint?", "What does headrace models inspect do?", "How much memory does a model need?", "~Which command inspects a model?"]),
 ("upstream", "An upstream is another server that Headrace sends calls on to, such as vLLM or OpenAI.", ["What is an upstream?", "what is an upstream", "Explain upstreams.", "What does upstream mean?", "~Define upstream."]),
 ("upstreams", "Run headrace upstreams. It shows which servers are up, how busy they are and what failed last.", ["How do I see my upstreams?", "Which upstreams are up?", "What does headrace upstreams do?", "~Which command lists the upstreams?"]),
 ("vllm", "Run headrace up --upstream NAME=vllm:URL. Calls then go on to vLLM.", ["How do I put Headrace in front of vLLM?", "How do I use Headrace with vLLM?", "Can Headrace use vLLM?", "~How do I connect vLLM?"]),
 ("openai", "Run headrace up --upstream NAME=openai:URL, with the key in an environment variable.", ["How do I put Headrace in front of OpenAI?", "How do I use Headrace with OpenAI?", "Can Headrace call OpenAI?", "~How do I connect OpenAI?"]),
 ("dialects", "Headrace speaks the APIs of OpenAI and Anthropic.", ["Which APIs does Headrace speak?", "Is Headrace compatible with OpenAI?", "Which API formats does Headrace support?", "Can I use the OpenAI SDK?", "Does Headrace speak the Anthropic API?", "~Which dialects does Headrace know?"]),
 ("runs", "It runs Llama, Qwen2 and Qwen3 models on the CPU.", ["Which models can Headrace run?", "What models does Headrace support?", "Does Headrace run Llama?", "~What kinds of models can Headrace run?"]),
 ("status", "Run headrace status. It shows how the server does.", ["How do I see how the server does?", "What does headrace status do?", "Is my server healthy?", "~Which command shows the status?"]),
 ("audit", "Run headrace audit. It shows who changed what.", ["Who changed the settings?", "What does headrace audit do?", "How do I see who changed what?", "~Which command shows the audit log?"]),
 ("alias", "An alias is another name for a model.", ["What is an alias?", "What is a model alias?", "What does alias mean?", "~Define alias."]),
 ("canary", "A canary sends a small part of the calls to a new model, to see how it does.", ["What is a canary?", "what is a canary", "What is a canary release?", "Explain canaries.", "~Tell me about canaries."]),
 ("drain", "Draining means that a server takes no new calls and ends those that run.", ["What is draining?", "What does drain mean?", "How does a server stop without losing calls?", "~Explain draining."]),
 ("idem", "An idempotency key makes sure that a call sent twice runs once and is charged once.", ["What is an idempotency key?", "What does idempotency mean?", "How do I avoid paying twice?", "~Explain idempotency."]),
 ("batchapi", "A batch is a file of calls that run later at a lower price.", ["What is a batch?", "What is the batch API?", "How do batches work?", "~Explain the batch API."]),
 ("logprobs", "Logprobs say how likely the model found each token.", ["What are logprobs?", "what are logprobs", "What does logprobs do?", "Explain logprobs.", "~Define logprobs."]),
 ("embedding", "An embedding is a list of numbers that stands for the meaning of a text.", ["What is an embedding?", "what is an embedding", "What are embeddings?", "Explain embeddings.", "~Define embedding."]),
 ("tenant", "A tenant is a customer whose data, money and limits are kept apart from those of others.", ["What is a tenant?", "What does tenant mean?", "Explain tenants.", "~Define tenant."]),
 ("requestid", "The request id is in the header x-request-id of every answer.", ["Where do I find the request id?", "What is x-request-id?", "How do I find the id of a call?", "~Where is the request id?"]),
 ("ctxerr", "The prompt and the answer do not fit into the context of the model. Send a shorter prompt.", ["What does context_length_exceeded mean?", "Why do I get context_length_exceeded?", "What is context_length_exceeded?", "~I see context_length_exceeded. What is it?"]),
 ("notfounderr", "The model does not exist or your key may not use it. Ask GET /v1/models for the names.", ["What does model_not_found mean?", "Why do I get model_not_found?", "What is model_not_found?", "~I see model_not_found. What is it?"]),
 ("moneyerr", "The balance is too small for what the call can cost. Add credit or ask for fewer tokens.", ["What does out_of_money mean?", "Why do I get out_of_money?", "What is out_of_money?", "~I see out_of_money. What is it?"]),
 ("budgeterr", "The budget of the project is used up. Raise it or wait for the next period.", ["What does budget_exceeded mean?", "Why do I get budget_exceeded?", "What is budget_exceeded?", "~I see budget_exceeded. What is it?"]),
 ("keyerr", "The server does not know this API key. Check it or create a new one.", ["What does invalid_api_key mean?", "Why do I get invalid_api_key?", "What is invalid_api_key?", "~I see invalid_api_key. What is it?"]),
 ("queueerr", "Too many calls are waiting. Try again after the time in Retry-After.", ["What does queue_full mean?", "Why do I get queue_full?", "What is queue_full?", "~I see queue_full. What is it?"]),
 ("rpmerr", "The key has sent too many requests this minute. Wait and try again.", ["What does requests_per_minute mean?", "Why do I get requests_per_minute?", "~I see requests_per_minute. What is it?"]),
 ("tpmerr", "The key has used too many tokens this minute. Wait and try again.", ["What does tokens_per_minute mean?", "Why do I get tokens_per_minute?", "~I see tokens_per_minute. What is it?"]),
 ("weights", "Weights are the numbers that a model has learned.", ["What are weights?", "what are weights", "What are the weights of a model?", "Explain weights.", "~Define weights."]),
 ("transformer", "A transformer is a network of layers with attention, which most language models are.", ["What is a transformer?", "what is a transformer", "Explain transformers.", "~Define transformer."]),
 ("halluc", "A model hallucinates when it states something that is not true.", ["What is a hallucination?", "What does hallucinate mean?", "Why do models make things up?", "~Explain hallucination."]),
 ("demo", "I am a tiny demo model that ships with Headrace. I know LLM APIs, small sums, word lists, JSON and tool calls.", ["Who are you?", "What are you?", "What can you do?", "Which model are you?", "Are you ChatGPT?", "Are you a human?", "Help", "help", "What is this?", "How can you help me?", "Who am I talking to?", "Are you real?", "What is the demo model?", "What do you know?", "~What are you able to do?", "~Tell me who you are.", "~Hello! Who am I talking to?"]),
 ("trained", "I was trained on text that a script wrote, and on nothing else.", ["How were you trained?", "What were you trained on?", "What data do you know?", "Who made you?", "Where does your knowledge come from?", "~What is your training data?"]),
]
CALL_ANSWER = "A call goes through these stages:\n" + "\n".join(f"{i}. {s}" for i, s in enumerate([
    "The client resolves the name and opens a TLS connection.", "The gateway checks the API key, the rights and the limits.", "The chat template joins the messages into one text.",
    "The tokenizer turns the text into token numbers.", "The most that the call can cost is held.", "The request waits in a queue for room in the batch.",
    "Prefill: the model reads the whole prompt and fills the KV cache.", "Decode: the model writes one token at a time.", "Each token is turned back into text and streamed to the client.",
    "The call is settled: its tokens are counted and charged."], 1))
AROUND = ["$q", "$q", "$q", "$q", "$q", "Hi! $q", "Hello, $q", "Please tell me: $q", "A question: $q", "Quick question. $q", "$q Please be brief.", "$q Thanks!", "OK, $q", "I wonder: $q", "$q I am new to this."]


# Other ways to ask what begins like this; what the evaluation asks is taken out again.
SAME = [(r"What (?:is|are) (?!the difference|input|you\b|the command|error )(.+)\?", ["What's $x?", "Tell me about $x.", "Explain $x.", "Describe $x.", "Define $x.", "[Can|Could] you explain $x?", "Tell me what $x means.", "What do you mean by $x?", "[I would like|I'd like|I want] to know about $x.", "Give me the definition of $x.", "What do people call $x?", "Say what $x means.", "$x?", "$x, what is that?", "Do you know about $x?", "Hi! $q"]),
        (r"How (?:do|can) I (.+)\?", ["How do I $x?", "How can I $x?", "How could I $x?", "I want to $x.", "I want to $x. How?", "I need to $x.", "Tell me how to $x.", "Tell me how I can $x.", "How to $x?", "how to $x", "What must I do to $x?", "What is the way to $x?", "Can I $x?", "Is there a way to $x?", "Please help me to $x.", "I would like to $x.", "Show me how to $x.", "What should I do to $x?", "I do not know how to $x."]),
        (r"Why (do|does|is|are|did|was) (.+)\?", ["Tell me: $q", "[Can|Could] you tell me: $q", "I do not understand: $q", "Please explain: $q", "$q I wonder."]),
        (r"What does ([a-z].+) do\?", ["What is $x for?", "Tell me what $x does.", "Explain $x.", "What happens with $x?", "When do I use $x?", "What can I do with $x?", "$x, what does it do?"]),
        (r"What does (status \d+|\w+_\w+) mean\?", ["I get $x. What now?", "My call fails with $x.", "The server says $x.", "The answer was $x. What does that mean?", "I got $x. What is that?", "The error is $x.", "What should I do about $x?", "Why $x?", "There is $x in my log.", "Help, I see $x!", "$x?", "What is the meaning of $x?", "I keep getting $x."]),
        (r"What is error (\d+)\?", ["I get a $x. What now?", "I got a $x.", "What is a $x?", "Why is there a $x?", "The server sends a $x.", "My call ended with a $x, why?", "What is the meaning of a $x?", "What means $x?"])]


def reworded(q):
    for pattern, ways in SAME:
        if found := re.fullmatch(pattern, q): return [w.replace("$x", found.group(1)).replace("$q", q) for w in ways]
    return []


def intents():
    """All intents: id -> (answer, train questions, held-out questions)."""
    found = {}
    for key in T:
        for way, asks in ASK.items():
            qs = [(q.removeprefix("~").replace("$n", n), q.startswith("~")) for q in asks for n in names(key)]
            found[f"{key}.{way}"] = (topic_answer(key, way), [q for q, held in qs if not held], [q for q, held in qs if held])
    for key, answer, qs in SINGLE:
        held = [q[1:] for q in qs if q[0] == "~"]; train = [q for q in qs if q[0] != "~"]; kept = {q.lower().rstrip("?.") for q in held}
        commands = [f"{w} {m.group(1)}?" for q in train if "Run headrace" in (answer or "") and (m := re.fullmatch(r"How (?:do|can) I (.+)\?", q)) for w in ("Which command do I use to", "What is the command to", "With which command can I", "What do I run to", "Which command do I need to")]
        found[key] = (answer or CALL_ANSWER, train * 3 + [w for q in train + commands for w in (reworded(q) or [q]) if w.lower().rstrip("?.") not in kept], held)
    for a, b, sentences in CMP:
        qs = ["What is the difference between $x and $y?", "Compare $x and $y.", "$x or $y: what is the difference?", "How is $x different from $y?", "$x vs $y?", "What distinguishes $x from $y?", "How does $x differ from $y?", "Explain how $x and $y are different.", "Tell me the difference between $x and $y.", "In what do $x and $y differ?", "What is different between $x and $y?", "Explain $x and $y: how are they different?", "Difference between $x and $y?", "~How do $x and $y differ?", "~Explain the difference between $x and $y."]
        qs = [q.replace("$x", x).replace("$y", y) for q in qs for x, y in ((names(a)[0], names(b)[0]), (names(b)[0], names(a)[0]))]
        found[f"{a}-{b}"] = (" ".join(sentences[:2]), [q for q in qs if q[0] != "~"], [q[1:] for q in qs if q[0] == "~"])
    return found


INTENTS = intents()
BY_TOPIC = list(T)
POPULAR = ["call", "call", "headrace", "llm", "demo", "demo", "token", "outcost", "kv.what", "kv.why", "prefill.what", "decode.what", "ratelimit.what", "prefill-decode"]     # what people ask first


def question(v, key):
    answer, train, held = INTENTS[key]
    q = cap(v.say(v.r.choice(held if v.held and held else train)))
    if v.r.random() < .1: q = q[:1].lower() + q[1:].rstrip("?.")
    return q if v.held else v.say(*AROUND).replace("$q", q)


def know(v):
    """A question and its answer, and perhaps others that follow."""
    r = v.r; ms = []
    single = [k for k in INTENTS if "." not in k]
    key = r.choice(POPULAR) if r.random() < .12 else r.choice(single) if r.random() < .5 else f"{r.choice(BY_TOPIC)}.{r.choice(['what', 'what', 'why', 'how', 'like'])}"
    ms += [("user", question(v, key)), ("assistant", INTENTS[key][0])]
    if not v.held and r.random() < .35:
        if "." in key and r.random() < .3:          # what was said before may be in other words: it is read, not learnt
            x = T[key.split(".")[0]]; ms[-1] = ("said", expand(r.choice(x["d"]), r) + (" " + expand(r.choice(x["f"]), r) if r.random() < .5 else ""))
        ms += follow(v, key)
    elif not v.held and r.random() < .3:
        key = r.choice(list(INTENTS)); ms += [("user", question(v, key)), ("assistant", INTENTS[key][0])]
    return ms


def follow(v, key):
    """Questions that are understood only from what was said before."""
    r = v.r; ms = []
    topic = key.split(".")[0] if "." in key else None
    for _ in range(r.choice([1, 1, 2])):
        if topic is None or r.random() < .35:
            topic = r.choice(BY_TOPIC)
            ms += [("user", v.ask(*SWITCH, n=r.choice(names(topic)))), ("assistant", topic_answer(topic, "what"))]
        else:
            way = r.choice(list(MORE)); ms += [("user", v.ask(*MORE[way])), ("assistant", topic_answer(topic, way))]
    return ms


if __name__ == "__main__":
    print(len(INTENTS), "intents,", sum(len(x[2]) for x in INTENTS.values()), "held-out questions")
    for key in ("kv.what", "kv.why", "kv.how", "kv.like", "call", "ttft.what", "prefill-decode"): print(key, INTENTS[key])
