//! For each code: who can change it, the usual cause, and a sample message. Must not know how a page looks.

use headrace_domain::Code;

use super::who::Who;

/// The facts of a page that are not in the table of refusals.
pub(super) struct Cause {
    pub(super) who: Who,
    /// The usual cause.
    pub(super) why: &'static str,
    /// A sample message. Empty if callers never receive this code.
    pub(super) message: &'static str,
    /// The parameter that the message names, if any.
    pub(super) param: Option<&'static str>,
}

macro_rules! param {
    () => {
        None
    };
    ($param:literal) => {
        Some($param)
    };
}

/// A row: code, who, why, message, and the parameter if the message names one. A missing row is a compile error.
macro_rules! causes {
    ($($code:ident $who:ident $why:literal $message:literal $($param:literal)?;)*) => {
        pub(super) const fn cause(code: Code) -> &'static Cause {
            match code {
                $(Code::$code => &Cause {
                    who: Who::$who,
                    why: $why,
                    message: $message,
                    param: param!($($param)?),
                },)*
            }
        }
    };
}

causes! {
    NotFound Caller "Usually the client's base URL: without `/v1` for OpenAI's clients, with `/v1` for Anthropic's, or with a slash at its end."
        "There is no `/v1/modles` here. See the README for the paths.";
    MethodNotAllowed Caller "A `GET` instead of a `POST`, or a browser's `OPTIONS`."
        "This path takes POST.";
    HeadTooLarge Caller "A proxy or a browser that adds cookies and headers to every request, or a token that grew."
        "A request's line and headers may have 16384 bytes (`server.max_header`), over HTTP/1.1 in no more than 100 headers. Send fewer or shorter ones.";
    BadHead Caller "`https://` to a port without TLS, another protocol, or a client that writes headers by hand."
        "This is not the head of an HTTP/1.1 request: invalid HTTP version parsed. Look at what the client sends: TLS to a plain port, another protocol, or a header that is none.";
    HeaderTimeout Caller "A connection that was opened before its request, or a network that lost part of the request."
        "The headers were not whole within 10 s. Send the request again.";
    AmbiguousLength Caller "A proxy that adds a `content-length` of its own to a chunked body."
        "The head does not say in one way where its request ends. Send one `content-length`, or `transfer-encoding: chunked` alone, and nothing behind a request to `upgrade`.";
    BadHost Caller "A client that writes HTTP by hand, or a proxy that adds a second `host`."
        "The head names 2 hosts. Send one `host` header.";
    TooManyConnections Both "A client that opens a connection for every call, or a load above the configured bound."
        "Your address has 256 connections with calls in flight, as many as one may have. Share connections, or try again shortly.";
    TooManyRefusals Caller "A loop that repeats requests with an invalid key or to a wrong path."
        "Too many requests of your address were refused; the connection is closed.";
    ShuttingDown Nobody "The server is stopping, for a deployment or a restart."
        "The server is shutting down. Try again in a moment, or on another instance.";

    MissingApiKey Caller "The environment variable with the key is not set in the environment of the client."
        "No API key was given. Send it as `Authorization: Bearer sk-...` or as `x-api-key: sk-...`.";
    InvalidApiKey Caller "A revoked key, a key of another server, a key that was truncated when it was copied, or a key of the provider behind this gateway."
        "The API key is not valid.";
    ExpiredApiKey KeyOwner "The key was created with an expiry time, which has passed."
        "The API key has expired.";
    ConflictingCredentials Caller "A client that sends `x-api-key` itself, in addition to a configured header with another key."
        "Two different credentials were given. Send one, in `Authorization` or in `x-api-key`.";
    InvalidToken Caller "A token for another audience, an ID token in place of an access token, or a token of another issuer."
        "The JWT is for other audiences. Ask the identity provider for a token whose `aud` names this server.";
    ExpiredToken Caller "A token that is kept longer than it is valid, often one hour."
        "The JWT has expired (`exp`). Ask the identity provider for a new token.";
    JwtNotConfigured Both "A client that signs in with an identity provider, at a server that accepts only API keys."
        "JWTs are not configured on this server, and the credential is one: it has two dots. Send an API key, `sk-…`.";
    TokenNotMapped Operator "A user in none of the groups that the rules name, or a provider that does not write the claim into its tokens."
        "The JWT is valid, and no rule of its issuer gives it access. Its claims: `aud`, `exp`, `iss`, `sub`. Ask the operator for a rule that matches them.";
    UserInactive Operator "A person who left, or whom the identity provider no longer assigns to this server."
        "The JWT is valid, and its user is not active on this server. Ask the operator to activate the user.";
    AddressNotAllowed KeyOwner "The program moved to another network, or a proxy is between it and the server."
        "The API key may not be used from 203.0.113.9: the address is not in the key's `allowed_ips`. Call from an allowed address, or ask the operator to add it.";
    IdentityProviderUnavailable Operator "The identity provider is down, or this server cannot reach it: DNS, a firewall, a certificate."
        "The keys of the JWT's issuer cannot be fetched now, so the token could not be checked. Try again shortly.";
    CredentialMissing Caller "As `missing_api_key`." "";
    CredentialMalformed Caller "A key that was truncated or wrapped when it was copied." "";
    CredentialConflicting Caller "As `conflicting_credentials`." "";
    CredentialWithoutScheme Caller "A header that was written by hand: `Authorization: sk-…`." "";
    KeyUnknown Caller "A key of another server, or of this server before its data directory was replaced." "";
    KeyRevoked KeyOwner "An operator revoked the key: `headrace audit` shows who and when." "";
    KeyOwnerInactive KeyOwner "The owner of the key was deactivated, often by the identity provider: `headrace audit` shows when." "";
    KeyExpired KeyOwner "As `expired_api_key`." "";

    InvalidIdempotencyKey Caller "A key that a program builds from text of its user, or a proxy that adds a second header."
        "`Idempotency-Key`: it must have 1 to 255 printable ASCII characters, bare or in double quotes; this one has 300 bytes.";
    RequestTooLarge Both "Files or images inlined as text, or a conversation that was never shortened."
        "The body may have 8388608 bytes. Shorten it, or raise `server.max_body`.";
    BodyTimeout Caller "A slow network, or a client that announced a body and then waits."
        "The body made no progress for 30 s. Send the request again.";
    IncompleteBody Caller "A client that was stopped, or a `content-length` that counts characters instead of bytes."
        "The body broke off before its end.";
    TooManyPieces Caller "A client that sends a chunk for every byte."
        "The body came in 70000 pieces for 70123 bytes. Send it in larger chunks, or with a `content-length`.";
    UnsupportedEncoding Caller "A client or proxy that compresses requests."
        "The content-encoding `gzip` is not taken. Send the body as it is.";
    UnsupportedMediaType Caller "`curl -d` without `-H 'Content-Type: application/json'`."
        "The body must be `content-type: application/json`.";
    RequestMemoryPerKey Both "Many large requests of one key at the same time."
        "With this one, the requests of this key that are being read or answered have 70000000 bytes; they may have 67108864 (`server.request_memory_per_key`). Wait for some of them.";
    RequestMemory Operator "Many large requests of all callers at the same time."
        "With this one, the requests that are being read or answered have 270000000 bytes; they may have 268435456 (`server.request_memory`). Try again shortly.";

    InvalidJson Caller "A body that was built by concatenating strings: a quote or a line break inside a text was not escaped."
        "not valid JSON at byte 9: `:` must follow a key";
    JsonTooDeep Caller "A schema or a value that contains itself repeatedly."
        "Objects and arrays are nested more than 64 deep.";
    DuplicateKey Caller "A body that was built from two sources."
        "`model`: the object names this key twice" "model";
    MissingRequiredParameter Caller "A field that this dialect requires and another one does not, such as Anthropic's `max_tokens`."
        "`messages`: it is required" "messages";
    UnknownParameter Caller "A spelling mistake, or a field of another server. Headrace drops no field silently: that would hide the mistake."
        "`temprature`: there is no such parameter; did you mean `temperature`? (It is refused because ignoring it could change the answer.)" "temprature";
    UnsupportedParameter Caller "A feature that the model or this server does not have."
        "`modalities`: only text is supported; leave it out" "modalities";
    UnsupportedValue Caller "A value that another server accepts."
        "`response_format.type` may be `text`, `json_object` or `json_schema`." "response_format.type";
    UnsupportedContent Caller "A picture, sound or file for a model that reads only text."
        "`messages[0].content[0]`: image. The model `headrace-demo` takes text alone. Say what it shows as text, or ask a model that takes such parts." "messages[0].content[0]";
    InvalidType Caller "A number sent as a string, or the reverse."
        "`max_tokens`: it must be a number, not a string" "max_tokens";
    InvalidValue Caller "Values that contradict each other, or a role in a position that does not allow this role."
        "`messages[0].role`: it must be `system`, `developer`, `user`, `assistant` or `tool`" "messages[0].role";
    IntegerBelowMinValue Caller "`-1` for \"no limit\", as on some servers. Leave the field out instead."
        "`max_tokens`: it must be at least 1 and at most 1048576" "max_tokens";
    IntegerAboveMaxValue Caller "A default copied from another model's settings."
        "`n`: it must be at least 1 and at most 128" "n";
    DecimalBelowMinValue Caller "A penalty or temperature below its range."
        "`temperature`: it must be at least 0 and at most 2" "temperature";
    DecimalAboveMaxValue Caller "A percentage instead of a share from 0 to 1."
        "`temperature`: it must be at least 0 and at most 2" "temperature";
    ArrayAboveMaxLength Caller "A batch that should be several requests."
        "`stop`: the list may have at most 4 items; send fewer" "stop";
    EmptyArray Caller "A conversation that was filtered until it was empty."
        "`messages`: it must have at least one message" "messages";
    ObjectAboveMaxProperties Caller "A generated schema with thousands of properties."
        "`metadata`: it may have at most 16 pairs" "metadata";
    StringAboveMaxLength Caller "A text in a field that is meant for a name."
        "`user`: it may have at most 256 bytes" "user";
    EmptyString Caller "A variable that was empty when the request was built."
        "`stop`: it must not be empty" "stop";

    EndpointNotEntitled KeyOwner "The key was created for other endpoints."
        "This API key may not call the endpoint `chat.completions`. Ask for a key that may, or use another endpoint.";
    ReasoningNotEntitled Operator "A client that always sends a reasoning effort, with a key whose tier does not allow reasoning."
        "Tier `basic` of this key does not allow reasoning. Leave out `reasoning_effort`, or ask the operator for another tier." "reasoning_effort";
    ModelNotFound Both "A misspelt name, an alias that is not configured here, or a model that the key may not use."
        "The model `gpt-5` does not exist here. `GET /v1/models` lists those that you may use." "model";
    RegionNotAllowed Operator "The organisation or the key is pinned to regions, and no server in these regions serves the model."
        "The calls of organisation `acme` may be worked on in eu, and `best` is offered in us only." "model";
    RequestNotFound Caller "The id of a `GET`, which is not traced, the id of another project's request, or an id older than the stored traces."
        "There is no trace of this request for your project. Calls are traced, `GET`s are not; traces are kept for a bounded time.";
    ReceiptNotFound Caller "The call was refused, or failed before any work."
        "This request has no receipt: it was refused, failed before any work, or is not settled yet.";
    ResponseNotFound Caller "`store: false`, or an id of another project."
        "There is no such response for your project. Those with `store: true` are kept for a bounded time.";
    PreviousResponseNotFound Caller "The previous response was not stored, or still runs in the background."
        "The response in `previous_response_id`, or one that it continues, is not there, or has not ended. Send the whole conversation as `input`." "previous_response_id";
    ItemNotFound Caller "An item of a response that was not stored."
        "Item 0 of those that `input` names is not there for your project. Send the item itself, or store the response that it is of." "input";
    ConversationNotFound Caller "The conversation was deleted, or was unused for longer than the retention of objects."
        "There is no such conversation, or no such item of it, for your project.";
    ResponseNotStreamed Caller "The response was not created with `background` and `stream`."
        "The events of this response were not kept. Ask for it without `stream`." "stream";
    ResponseNotInBackground Caller "An attempt to cancel a response by its id while the response runs on an open connection."
        "Only a response in the background can be cancelled by its id.";
    FileNotFound Caller "The file was deleted, has expired, or belongs to another project."
        "There is no such file for your project.";
    UploadNotFound Caller "The upload was completed long ago, or belongs to another project."
        "There is no such upload for your project.";
    BatchNotFound Caller "The batch was deleted, ended long ago, or belongs to another project."
        "There is no such batch for your project.";
    BadForm Caller "JSON instead of a form, or a form without a `file`."
        "The form needs a field `purpose`." "purpose";
    FileTooLarge Both "A file above the maximum size."
        "A file may have 536870912 bytes (`objects.max_file`). Split it.";
    UploadNotPending Caller "A second completion, or a completion after the hour of the upload."
        "The upload was completed already.";
    UploadMismatch Caller "A part was lost, sent twice, or changed in transit."
        "The parts have 1048576 bytes, and 1048577 were announced.";
    BatchNotEnded Caller "A request for results before the end of the batch."
        "The batch has not ended.";
    BatchEnded Caller "A cancellation after the end of the batch."
        "The batch has ended: there is nothing to cancel.";
    BatchesFull Both "More open batches than a project may have."
        "The project has 16 batches under way, as many as it may have.";
    BadPage Caller "A query parameter of another path, or a `limit` above 100."
        "`limit` must be a number from 1 to 10000." "limit";
    ObjectsFull Both "A long conversation that continues stored turns, or a full store."
        "The response continues 70000000 bytes, and at most 67108864 are kept.";
    ObjectsUnavailable Operator "The disk is full or failing."
        "What clients store cannot be written now. Try again; `store: false` needs none of it.";
    DiskFull Operator "Uploads, batches or other data filled the disk."
        "The server's disk has no room for what clients store. Delete files, send `store: false`, or try again later.";
    BackgroundFull Both "Many background responses at the same time."
        "1024 responses run in the background, 40 of them your organisation's: one that has 32 or more takes no further place of 768. Wait for some of yours, cancel them, or send `background: false`.";
    TooManyLookUps Caller "A loop that requests traces."
        "As many look-ups of traces run as may at once. Try again shortly.";
    ModelUnpriced Operator "A model without a price, or with a price that begins later."
        "The model `big` has no price today, and nothing is free by accident. Set one under [[prices]].";

    ContentPolicy Both "A content rule of the operator matched in the call, perhaps in a tool description or an earlier turn."
        "The rule `internal-names` does not let this pass.";

    ExtraUnpriced Both "A tool of the provider, such as web search, a more expensive class of service, or sound in the answer."
        "`tools[0].type`: the extra `web_search` has no price here. Leave it out. Operators: set its price, or list it in `allow_unpriced` of the upstream." "tools[0].type";
    UrlNotAllowed Both "The call names an image or a file by its address, and the model's server runs inside the operator's network."
        "`messages[0].content[1].image_url.url`: the model's server may not be handed this address. Send the data itself (`data:`). Operators: `urls` of the upstream." "messages[0].content[1].image_url.url";
    ContextLengthExceeded Caller "A conversation that grew, a document that is too long, or a `max_tokens` that does not fit."
        "The prompt has 9 tokens and `max_tokens` asks for 100000 more; the context window of `headrace-demo` is 2048 tokens. Ask for at most 2039, or shorten the prompt." "max_tokens";
    TierLengthExceeded Operator "A long conversation, or a `max_tokens` that was copied from another deployment."
        "Tier `basic` allows 4096 tokens of prompt and answer together, and the prompt has 5000 tokens. Shorten the prompt.";
    EmptyPrompt Caller "A variable that was empty when the prompt was built."
        "`prompt`: it is empty, or holds only white space and characters that are not visible; send a text with at least one visible character, or leave it out (nothing was charged)" "prompt";
    WrongKindOfModel Caller "An embedding model at a chat endpoint, or the reverse."
        "The model `headrace-demo` generates text: it makes no embeddings and scores nothing. Use `POST /v1/chat/completions`, or a model that is an encoder." "model";
    NoChatTemplate Operator "A base model, or a checkpoint that lost its template in a conversion."
        "The model `base` has no chat template. Use `POST /v1/completions`, or add `chat_template.jinja` to its directory.";
    TemplateError Caller "Roles in an order that the model was not trained with: two user turns in a row, a system turn in the middle, a tool result without its call."
        "The model's template rejected the conversation: Conversation roles must alternate user/assistant/user/assistant/..." "messages";
    InvalidJsonSchema Caller "A keyword that Headrace cannot enforce, or a strict schema without `additionalProperties: false`."
        "Invalid schema for response_format 'x': it is not valid at `/type`: it must be one of the types `string`, `number`, `integer`, `boolean`, `object`, `array`, `null`, or a list of them, and it is `\"strin\"`." "response_format";
    InvalidGrammar Caller "A regular expression or grammar with a mistake in it."
        "Invalid grammar for structured_outputs: it is not valid: unclosed group." "structured_outputs";
    FormTooCostly Caller "Huge enumerations, nested repetitions, or bounds in the thousands."
        "The form takes more than 1000000 units of work to compile." "response_format";
    FormsBusy Nobody "Many new formats at the same time (each is compiled once and then cached), or a busy machine."
        "The processors are too busy to compile the format in time. Try again in a moment.";
    RenderFailed Operator "A fault of the server."
        "The prompt could not be rendered. Nothing was charged.";

    CallTooLarge Both "Many answers (`n`), log-probabilities of a long prompt, or `echo`."
        "The call takes up to 900.0 MiB of memory and no more than 256.0 MiB are ever given to the calls of a key (`gateway.max_key_memory`). Send less text at once." "n";
    KeyMemoryFull Both "Answers of this key that no client reads, or many large calls at the same time."
        "The call takes up to 40.0 MiB of memory; other calls of this key have 230.0 MiB of the 256.0 MiB that its calls may have at once (`gateway.max_key_memory`). Wait for some to end, or ask for less.";
    MemoryFull Operator "More large calls at the same time than the memory allows."
        "The call takes up to 40.0 MiB of memory; calls in flight have 1020.0 MiB of the 1024.0 MiB that all may have at once (`gateway.max_memory`). Try again.";
    KeyRenderingFull Both "Many long prompts of one key at the same time."
        "Long requests of this key are being read already, 8.0 MiB of them at most at once (half of `gateway.max_render_bytes_at_once`); this one waited for 5 s. Send fewer at once.";
    RenderingFull Operator "Many long prompts of all callers at the same time."
        "Long requests are being read already, 16.0 MiB of them at most at once (`gateway.max_render_bytes_at_once`); this one waited for 5 s. Try again.";

    RequestsPerMinute KeyOwner "More calls per minute than the key, its project or its organisation may make. Refused calls also count."
        "Limit reached: requests_per_minute of key `key_7f3a2b`: 60 of 60 used, 1 asked for; try again in 2 s.";
    TokensPerMinute KeyOwner "A high `max_tokens`: until a call ends, it counts with all tokens that it may generate."
        "Limit reached: tokens_per_minute of key `key_7f3a2b`: 13 of 40 used, 39 asked for; try again in 18 s.";
    Concurrency KeyOwner "More simultaneous calls than the key may have. Calls with unread answers also count."
        "Limit reached: concurrency of key `key_7f3a2b`: 4 of 4 used, 1 asked for; try again in 1 s.";

    OutOfMoney KeyOwner "The balance is used up, or smaller than the maximum cost of the call. The hold covers the maximum cost, not the expected cost."
        "Out of money: this call can cost up to $0.50, the balance is $0.12 ($0.00 of it held). Add credit (`headrace credit grant`) or ask for fewer tokens (`max_tokens`).";
    HeldInFlight Caller "Simultaneous calls hold the balance until they end."
        "Held by your own calls in flight: this call can cost up to $0.50; of the balance of $0.60, $0.40 is held. Wait for calls to finish, add credit, or ask for fewer tokens (`max_tokens`).";
    BudgetExceeded KeyOwner "The project has spent its budget for this month, or its total budget."
        "The budget of project `web` is $5.00; $4.90 is spent and $0.00 held, and this call can cost up to $0.50. Raise the budget (`headrace budget set`) or ask for fewer tokens.";
    BudgetRuleExceeded KeyOwner "A key, user, project, organisation or model has spent its budget for the hour, the day, the week or the month, or in all."
        "Budget `daily` allows key `key_7f3a2b` $5.00 a day: $4.90 used, $0.00 reserved by calls in flight, and this call needs up to $0.50. It begins anew at 2026-11-28T00:00:00Z. Ask for fewer tokens, or have the budget raised (`headrace budgets raise daily`).";
    QuotaExceeded KeyOwner "A key, user, project, organisation or model has used its tokens or requests of the hour, the day, the week or the month."
        "Budget `per-day` allows key `key_7f3a2b` 1000 requests a day: 1000 requests used, 0 requests reserved by calls in flight, and this call needs up to 1 request. It begins anew at 2026-11-28T00:00:00Z. Wait until then, or have the budget raised (`headrace budgets raise per-day`).";
    CostOverflow Caller "A price and a `max_tokens` with a product above nine billion dollars."
        "What this call could cost does not fit 64-bit nano-dollars. Ask for fewer tokens." "max_tokens";
    UnknownProject Operator "A project that was created while the ledger was unavailable, or a project of a lost ledger."
        "This project has no account yet. Grant it credit (`headrace credit grant`).";
    UnknownOrg Operator "As `unknown_project`, for an organisation."
        "This project has no account yet. Grant it credit (`headrace credit grant`).";
    JournalUnavailable Operator "A full or failing disk under the data directory."
        "The ledger cannot be written now, so nothing runs and nothing is charged: No space left on device. Try again.";
    LedgerUnavailable Operator "As `journal_unavailable`." "";
    LedgerBusy Operator "A disk that is too slow for the load." "";
    IdempotencyInFlight Caller "A client repeated a request after a timeout of its own, while the server still worked on it."
        "A request with this `Idempotency-Key` is still running (req_…). Wait, then send the same request again: it gets the answer of the first one.";
    IdempotencyMismatch Caller "A key that is not made anew for each request, such as the id of a user or a session."
        "This `Idempotency-Key` was used for another request of this project (req_…), with another path, query or body. Use a new key for each new request.";
    IdempotencyAnswerGone Caller "The client closed the connection before it had the whole answer, and repeated the request."
        "The request with this `Idempotency-Key` has run (req_…) and was charged, but its answer is not stored. It does not run again. Use a new key to run it again.";
    IdempotencyReplay Nobody "A line of a batch had been paid for before a restart." "";
    TooManyIdempotencyKeys KeyOwner "More than a million requests with keys, or lines of batches, in a day."
        "Project `web` has used 1000000 idempotency keys within 24 hours, the most that are remembered. Send the request without a key, or try again later.";
    UnknownBudgetRule Operator "A misspelt name, or a budget that was removed." "";
    OlderGateway Operator "A rolling update that has not reached all gateways." "";
    UnknownLot Operator "A misspelt id, or a lot that has ended." "";
    UnknownFreeTier Operator "A misspelt name, or a free tier that was removed." "";
    RefundExceedsCharge Operator "The same charge was refunded before under another reference." "";
    RefundReferenceUsed Operator "A ticket for which another call was refunded." "";
    ProjectTaken Operator "The name is in use." "";
    UnknownHold Nobody "A fault inside the ledger." "";
    AlreadyResolved Nobody "A settlement that was sent twice, as intended after a failed write." "";
    DuplicateHold Nobody "A fault inside the ledger." "";
    Invalid Operator "A command with an invalid value." "";
    Overflow Caller "As `cost_overflow`." "";
    LedgerInconsistent Operator "A fault in the ledger, which the ledger detected before writing anything."
        "The ledger refused the hold: the sums would not agree. Nothing was charged.";

    QueueFull Operator "More waiting calls than the engine's queue accepts. Part of the queue is reserved for organisations with fewer waiting calls."
        "The queue is full: 1024 sequences wait, as many as may; room is expected in 14 s. Nothing was charged.";
    DeadlineTooShort Caller "The call's own `timeout` is shorter than the predicted wait."
        "The first token cannot be there in time: 8 s of waiting and 2 s of prefill are foretold. Nothing was charged.";
    QueueExpired Caller "The call waited for the whole time of its own `timeout`."
        "The call waited past its deadline. What was not delivered is not charged.";
    CallTooLong Both "A long answer on a slow model, or a long wait before it."
        "The call lasted as long as its money is held for (`gateway.hold_lifetime`). What was not delivered is not charged.";
    EngineUnavailable Operator "The engine is stopping or restarting after a fault, or every worker is drained."
        "The engine of the model is not available. Nothing was charged.";
    UpstreamUnreachable Operator "The upstream is down, its name does not resolve, or its certificate is not accepted."
        "No connection to the upstream came about. Nothing was charged.";
    UpstreamMisconfigured Operator "An invalid key for the upstream, or a model name that the upstream does not have."
        "The upstream that answers for this model does not take what is configured for it. Nothing was charged.";
    UpstreamOverloaded Operator "The limits of our account at the upstream, or the upstream's load."
        "No upstream of `headrace-demo` takes calls now. Nothing was charged.";
    UpstreamTimeout Operator "An upstream that hangs, or bounds (`timeouts`) that are too short for its answers."
        "The upstream took longer than is waited for it. What was not delivered is not charged.";
    UpstreamRefused Caller "A parameter that Headrace passes on unchanged and that the upstream rejects."
        "The upstream rejected the request: temperature: must be at most 1.";
    UpstreamFailed Operator "The upstream broke off, or answered with an error of its own."
        "The upstream failed: its answer broke off. What was not delivered is not charged.";
    UpstreamAnswerTooLarge Operator "An upstream that ignores `max_tokens`, or sends something other than an answer."
        "The upstream of the model sent more than the 4194304 bytes that its answer's body may have. What was not delivered is not charged.";
    Untranslatable Caller "An endpoint of one dialect for a model with upstreams of another dialect."
        "`completions` has no counterpart at the model's upstreams, which speak Anthropic's messages. Use `/v1/chat/completions`.";
    EngineFailed Operator "A fault in the computation of this call."
        "The computation failed. What was not delivered is not charged.";
    NotFinite Operator "A broken checkpoint, or a prompt that makes the arithmetic overflow."
        "The model gave values that are not numbers at position 9. What was not delivered is not charged.";
    FormLost Caller "A format that is so ambiguous that following it takes too much work."
        "The answer could not follow its form any further: following the form took 33088000 units of work for 33 tokens, and the \
         limit is 33056000 (32000 more for each token). What was computed until then is charged. Use a form with fewer \
         alternatives, shorter patterns and lists, or less ambiguity.";
    AnswerOffForm Operator "An upstream model that does not enforce the format of its answers."
        "The finished answer does not fit the schema: at `items[0].price`, `type` is not kept. It is not charged.";
    InternalError Operator "A fault in the gateway."
        "Something failed on this side. What was not delivered is not charged. Report it with the request id.";
}
