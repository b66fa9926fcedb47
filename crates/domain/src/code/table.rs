//! The rows of the error table, in the order of the request path. Texts are those of the error page, in Markdown. Must
//! not know which code refuses.

use super::{CodeRow, ErrorKind};
use crate::Stage;

macro_rules! answer {
    (($status:literal $kind:ident)) => {
        Some(($status, ErrorKind::$kind))
    };
    (inside) => {
        None
    };
}

/// A row: variant, name, stage, then `(status kind)`, or `inside` if callers never see this name. Then what happened,
/// in one sentence, and the way out.
macro_rules! codes {
    ($($variant:ident $name:literal $stage:ident $answer:tt $meaning:literal $way_out:literal;)*) => {
        /// The name of an error or refusal. See [`Code::meaning`] for each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(
                #[doc = $meaning]
                $variant,
            )*
        }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            pub(super) const fn row(self) -> &'static CodeRow {
                match self {
                    $(Self::$variant => &CodeRow {
                        name: $name,
                        stage: Stage::$stage,
                        answer: answer!($answer),
                        meaning: $meaning,
                        way_out: $way_out,
                    },)*
                }
            }
        }
    };
}

codes! {
    NotFound "not_found" Connect (404 NotFound)
        "The path does not exist."
        "The README lists the paths. API paths begin with `/v1/`. If a wrong base URL is the only fault of the path, the \
         message names the right path. OpenAI's clients need the base URL with `/v1`, Anthropic's without. Neither takes a \
         slash at the end.";
    MethodNotAllowed "method_not_allowed" Connect (405 InvalidRequest)
        "The path exists, but not with this method."
        "The header `Allow` names the allowed methods.";
    HeadTooLarge "head_too_large" Connect (431 RequestTooLarge)
        "The request line and headers have more bytes than the bound in the message or, over HTTP/1.1, there are more than \
         100 headers."
        "Send fewer or shorter headers. The bound is `server.max_header`. Over HTTP/1.1 the connection is closed. Over \
         HTTP/2, a head with more than twice the bound gets an answer without a body.";
    BadHead "bad_head" Connect (400 InvalidRequest)
        "The received bytes are not the head of an HTTP/1.1 request; the message describes the fault."
        "Check what the client sends: TLS to a plain port, another protocol, or an invalid header. The connection is closed.";
    HeaderTimeout "header_timeout" Connect (408 Timeout)
        "The headers of the request were incomplete after the number of seconds in the message."
        "Send the request again.";
    AmbiguousLength "ambiguous_length" Connect (400 InvalidRequest)
        "The head does not define the end of its request in exactly one way."
        "Send one `content-length`, or `transfer-encoding: chunked` alone. Look for a proxy that adds its own header. The \
         server refuses two `content-length` headers, one with `transfer-encoding`, one that is not a number, any other \
         `transfer-encoding`, and bytes after a request to `upgrade`. The connection is closed.";
    BadHost "bad_host" Connect (400 InvalidRequest)
        "The request does not have exactly one `host` header (RFC 9112 §3.2)."
        "Send one `host` header. The HTTP/1.1 request had none, or several. The connection is closed.";
    TooManyConnections "too_many_connections" Connect (503 Overloaded)
        "The server has the maximum number of connections with calls in flight, in total or for your address."
        "Reuse connections, or raise `server.max_connections` or `server.max_connections_per_peer`.";
    TooManyRefusals "too_many_refusals" Connect (429 RateLimit)
        "Too many requests from your address had no valid key, or a path that does not exist, so the server no longer \
         examines such requests."
        "Requests with a valid key from the same address are still served. The bound is `server.max_refusals_per_peer`. The \
         connection is closed, and there is no trace.";
    ShuttingDown "shutting_down" Connect (503 Overloaded)
        "The server is shutting down: it accepts no new calls and finishes the calls in flight."
        "Try again in a moment, or on another instance. A stream that ends with this error was cut off at the end of the \
         drain time. Undelivered output is not charged.";

    MissingApiKey "missing_api_key" Authenticate (401 Authentication)
        "The request has no API key."
        "Send `Authorization: Bearer sk-…` or `x-api-key: sk-…`.";
    InvalidApiKey "invalid_api_key" Authenticate (401 Authentication)
        "The key is unknown, revoked or malformed. All three get the same answer."
        "`headrace keys` creates a key.";
    ExpiredApiKey "expired_api_key" Authenticate (401 Authentication)
        "The key has expired."
        "Ask for a new key.";
    ConflictingCredentials "conflicting_credentials" Authenticate (401 Authentication)
        "`Authorization` and `x-api-key` hold different credentials."
        "Send only one of them.";
    InvalidToken "invalid_token" Authenticate (401 Authentication)
        "The JWT is not valid here; the message names the part or claim at fault."
        "Ask the identity provider for a token whose audience is this server. See [identity providers](recipes/identity-provider.md).";
    ExpiredToken "expired_token" Authenticate (401 Authentication)
        "The JWT has expired."
        "Ask the identity provider for a new one. 60 seconds of difference between clocks are tolerated.";
    JwtNotConfigured "jwt_not_configured" Authenticate (401 Authentication)
        "The credential is a JWT, and no identity provider is configured."
        "Send an API key. Operators: add `[[identity.issuers]]`, see [identity providers](recipes/identity-provider.md).";
    TokenNotMapped "token_not_mapped" Authenticate (403 Permission)
        "The JWT is valid, and no rule of its issuer gives it access to a project; the message names its claims, without values."
        "Operators: add a rule to `identity.issuers` that matches one of the claims, or create the project that the rule names.";
    UserInactive "user_inactive" Authenticate (403 Permission)
        "The JWT is valid, and its user was deactivated or removed on this server. A running call also ends so if the user or \
         service account that its key belongs to is deactivated."
        "Operators: `headrace users list` shows the user, and `headrace users activate ID` lets its tokens and keys work again. \
         A user that an identity provider keeps by SCIM is activated there.";
    AddressNotAllowed "address_not_allowed" Authenticate (403 Permission)
        "The API key is valid, and may not be used from the address that the request came from."
        "The message names the address. Call from an address in the key's `allowed_ips`. Operators: \
         `headrace keys change KEY --allow-ip RANGE`. Behind a proxy, name it in \
         `server.trusted_proxies`, or the address is the proxy's.";
    IdentityProviderUnavailable "identity_provider_unavailable" Authenticate (503 Internal)
        "The identity provider's keys could not be fetched, so the JWT was not checked."
        "Try again after `retry-after`. Operators: the log names the address and the cause.";
    CredentialMissing "credential_missing" Authenticate inside
        "In traces: the request had no credential."
        "The caller received `missing_api_key`.";
    CredentialMalformed "credential_malformed" Authenticate inside
        "In traces: the credential cannot be a key."
        "The caller received `invalid_api_key`.";
    CredentialConflicting "credential_conflicting" Authenticate inside
        "In traces: the request had two different credentials."
        "The caller received `conflicting_credentials`.";
    CredentialWithoutScheme "credential_without_scheme" Authenticate inside
        "In traces: `Authorization` had a text like a key, without `Bearer` before it."
        "The message to the caller said so, with the code `invalid_api_key`. The text was not checked as a key.";
    KeyUnknown "key_unknown" Authenticate inside
        "In traces: the key does not exist."
        "The caller received `invalid_api_key`.";
    KeyRevoked "key_revoked" Authenticate inside
        "In traces: the key was revoked."
        "The caller received `invalid_api_key`.";
    KeyOwnerInactive "key_owner_inactive" Authenticate inside
        "In traces: the user or service account that owns the key was deactivated or removed."
        "The caller received `invalid_api_key`. `headrace users activate ID` or `headrace service-accounts activate ID` lets \
         the key work again.";
    KeyExpired "key_expired" Authenticate inside
        "In traces: the key has expired."
        "The caller received `expired_api_key`.";

    InvalidIdempotencyKey "invalid_idempotency_key" Authenticate (400 InvalidRequest)
        "The header `Idempotency-Key` is not a key: it is empty or too long, is sent twice, or has other characters than \
         printable ASCII."
        "Send one header with 1 to 255 bytes, bare or in double quotes. A UUID per request is a good key.";
    RequestTooLarge "request_too_large" Receive (413 RequestTooLarge)
        "The body exceeds the maximum size; the message names the maximum in bytes."
        "Send a shorter body, or raise `server.max_body`.";
    BodyTimeout "body_timeout" Receive (408 Timeout)
        "The body made no progress for the number of seconds in the message."
        "Send the request again. Look for a proxy that buffers.";
    IncompleteBody "incomplete_body" Receive (400 InvalidRequest)
        "The body ended before its `content-length`, or its framing is invalid."
        "";
    TooManyPieces "too_many_pieces" Receive (400 InvalidRequest)
        "The body came in far more chunks than its size needs; the message names both numbers."
        "Send larger chunks, or a `content-length`.";
    UnsupportedEncoding "unsupported_encoding" Receive (415 InvalidRequest)
        "The body has a `content-encoding` other than `identity`."
        "Send the JSON without compression. The server does not decompress bodies.";
    UnsupportedMediaType "unsupported_media_type" Receive (415 InvalidRequest)
        "The body must be `content-type: application/json`."
        "";
    RequestMemoryPerKey "request_memory_per_key" Receive (429 RateLimit)
        "The key's calls that are being read or answered use all of the key's request memory; the message names the bound in bytes."
        "Send fewer large requests at the same time, or raise `server.request_memory_per_key`.";
    RequestMemory "request_memory" Receive (503 Overloaded)
        "The calls that are being read or answered use all of the request memory."
        "Try again shortly. Operators: raise `server.request_memory`.";

    InvalidJson "invalid_json" Parse (400 InvalidRequest)
        "The body is not one JSON object in UTF-8."
        "The message names the position of the fault. `NaN` and `Infinity` are not JSON.";
    JsonTooDeep "json_too_deep" Parse (400 InvalidRequest)
        "Objects and arrays are nested too deeply."
        "Flatten the body. The message names the bound (64 unless configured).";
    DuplicateKey "duplicate_key" Parse (400 InvalidRequest)
        "An object has the same key twice, so its meaning is ambiguous."
        "Remove one of the two.";
    MissingRequiredParameter "missing_required_parameter" Parse (400 InvalidRequest)
        "A required parameter is missing."
        "Add the parameter.";
    UnknownParameter "unknown_parameter" Parse (400 InvalidRequest)
        "The parameter does not exist. Headrace refuses unknown parameters, because dropping one could change the answer."
        "Remove the parameter, or correct its spelling.";
    UnsupportedParameter "unsupported_parameter" Parse (400 InvalidRequest)
        "The parameter exists elsewhere but is not supported here."
        "The message names an alternative. Examples: `response_format` other than text, `chat_template`, `guided_json`, \
         `reasoning_effort`.";
    UnsupportedValue "unsupported_value" Parse (400 InvalidRequest)
        "The parameter is supported, but not with this value."
        "The message names the supported values.";
    UnsupportedContent "unsupported_content" Parse (400 InvalidRequest)
        "A content part is not text. Images, audio and files are not supported."
        "";
    InvalidType "invalid_type" Parse (400 InvalidRequest)
        "The value has the wrong JSON type."
        "The message names the expected type.";
    InvalidValue "invalid_value" Parse (400 InvalidRequest)
        "The value has the right type but is not valid."
        "The value is not valid by itself, or with the model: an id outside the vocabulary, `min_tokens` above `max_tokens`, \
         a role in a position that does not allow this role.";
    IntegerBelowMinValue "integer_below_min_value" Parse (400 InvalidRequest)
        "The integer is too small."
        "The message names the minimum. A negative `max_tokens` does not mean \"unlimited\" here.";
    IntegerAboveMaxValue "integer_above_max_value" Parse (400 InvalidRequest)
        "The integer is too large."
        "The message names the maximum (`n` and `prompt × n` have bounds of their own).";
    DecimalBelowMinValue "decimal_below_min_value" Parse (400 InvalidRequest)
        "The number is too small."
        "The message names the minimum.";
    DecimalAboveMaxValue "decimal_above_max_value" Parse (400 InvalidRequest)
        "The number is too large."
        "The message names the maximum, such as 2 for `temperature`.";
    ArrayAboveMaxLength "array_above_max_length" Parse (400 InvalidRequest)
        "The list has too many items."
        "The message names the maximum.";
    EmptyArray "empty_array" Parse (400 InvalidRequest)
        "The list is empty."
        "Send at least one item.";
    ObjectAboveMaxProperties "object_above_max_properties" Parse (400 InvalidRequest)
        "The object has too many entries."
        "This error also occurs if all tool schemas and arguments together have too many free-form values.";
    StringAboveMaxLength "string_above_max_length" Parse (400 InvalidRequest)
        "The string is too long."
        "The message names the maximum in bytes.";
    EmptyString "empty_string" Parse (400 InvalidRequest)
        "The string is empty."
        "Send a text that is not empty.";

    EndpointNotEntitled "endpoint_not_entitled" Authorize (403 Permission)
        "This key may not call this endpoint."
        "Ask for a key that may call this endpoint, or use another endpoint.";
    ReasoningNotEntitled "reasoning_not_entitled" Authorize (403 Permission)
        "The tier of this key does not allow reasoning, and the call asks for it."
        "Leave out the field that the message names, or ask the operator for another tier. Operators: \
         `headrace tiers change TIER` without `--no-reasoning`, or `headrace tiers assign`.";
    ModelNotFound "model_not_found" Route (404 NotFound)
        "The model does not exist, or this key may not use it. Both get the same answer."
        "`GET /v1/models` lists the models that you may use. A model name is never read as a path.";
    RegionNotAllowed "region_not_allowed" Route (403 Permission)
        "The calls of this key, or of its organisation, are pinned to regions, and the model is available in none of them."
        "The message names the pin, its regions and the model's regions. `GET /v1/models` lists the models that are \
         available in your regions. Operators: `region` of `[[upstreams]]` and `server.region` set the regions of models; \
         `headrace orgs regions` and `headrace keys regions` set the regions of calls.";
    RequestNotFound "request_not_found" Route (404 NotFound)
        "Your project has no trace of this request."
        "The id is wrong, belongs to another project, is the id of a `GET` (only calls are traced), or is older than the \
         stored traces. All of these get the same answer. The id of an answer (`chatcmpl-…`, `cmpl-…`, `msg_…`) finds the \
         same trace as the id of its request (`req_…`, header `x-request-id`).";
    ReceiptNotFound "receipt_not_found" Route (404 NotFound)
        "The request has no receipt."
        "Receipts are made for calls that the ledger has settled. A refused call has none, and neither has a call that failed \
         before any work. The receipt of a call that has just ended is there a moment later.";
    ResponseNotFound "response_not_found" Route (404 NotFound)
        "Your project has no such response."
        "The id is wrong or belongs to another project, or the response was not stored (`store: false`), was deleted, or is \
         older than the retention (`objects.retention`). All of these get the same answer.";
    PreviousResponseNotFound "previous_response_not_found" Parse (400 InvalidRequest)
        "The previous response, or an earlier response of its chain, does not exist or has not ended."
        "See `response_not_found`. Wait for the end of a background response. Otherwise send the whole conversation as `input`.";
    ItemNotFound "item_not_found" Parse (400 InvalidRequest)
        "An `item_reference` names an item that does not exist, no longer exists, or belongs to another project."
        "Send the item itself, or store the response that contains the item.";
    ConversationNotFound "conversation_not_found" Route (404 NotFound)
        "Your project has no such conversation, or no such item in the conversation."
        "The id is wrong or belongs to another project, or the conversation was deleted, or nothing was added to it for \
         `objects.retention`. All of these get the same answer.";
    ResponseNotStreamed "response_not_streamed" Route (400 InvalidRequest)
        "The events of this response were not stored."
        "Request the response without `stream`. Events are stored only for a response that was created with both \
         `background: true` and `stream: true`.";
    ResponseNotInBackground "response_not_in_background" Route (400 InvalidRequest)
        "Only a background response can be cancelled by its id."
        "Close the connection that delivers the response.";
    FileNotFound "file_not_found" Route (404 NotFound)
        "Your project has no such file."
        "The id is wrong or belongs to another project, or the file was deleted or has expired (`expires_after`). All of \
         these get the same answer.";
    UploadNotFound "upload_not_found" Route (404 NotFound)
        "Your project has no such upload."
        "The id is wrong or belongs to another project, or the upload ended long ago. All of these get the same answer.";
    BatchNotFound "batch_not_found" Route (404 NotFound)
        "Your project has no such batch."
        "The id is wrong or belongs to another project, or the batch was deleted, or ended longer ago than the retention \
         (`objects.retention`). All of these get the same answer.";
    BadForm "bad_form" Parse (400 InvalidRequest)
        "The body is not a form that this path accepts."
        "Send `multipart/form-data` with the fields that the message names, as the official SDKs do.";
    FileTooLarge "file_too_large" Parse (413 RequestTooLarge)
        "The file exceeds the maximum size of a file."
        "Split the file. The bound is `objects.max_file`.";
    UploadNotPending "upload_not_pending" Route (400 InvalidRequest)
        "The upload was completed, was cancelled, or has expired."
        "Create another upload, and complete it within an hour.";
    UploadMismatch "upload_mismatch" Route (400 InvalidRequest)
        "The parts do not match the upload: an unknown part, a part used twice, another number of bytes, or another MD5 sum."
        "Send the missing parts, or create another upload. The message names the mismatch.";
    BatchNotEnded "batch_not_ended" Route (400 InvalidRequest)
        "The batch has not ended, so it has no results yet and cannot be deleted."
        "Query the batch until it has ended, or cancel it.";
    BatchEnded "batch_ended" Route (409 InvalidRequest)
        "The batch has ended, so it cannot be cancelled."
        "The files of the batch contain its results.";
    BatchesFull "batches_full" Route (429 RateLimit)
        "The project has the maximum number of open batches."
        "Wait until some batches have ended, or cancel some. The bound is `objects.max_open_batches_per_project`.";
    BadPage "bad_page" Route (400 InvalidRequest)
        "A query parameter does not exist on this path, or its value is not valid."
        "`limit` is 1 to 100, `order` is `asc` or `desc`, `after` is the id of an item, `starting_after` is a sequence number.";
    ObjectsFull "objects_full" Route (413 RequestTooLarge)
        "The object to be stored, or the history that it continues, exceeds a bound; the message names the bound."
        "Send `store: false`, start a new conversation, delete objects, or raise the bound (`objects.*`).";
    ObjectsUnavailable "objects_unavailable" Route (503 Overloaded)
        "The store for objects of clients cannot be written or read at the moment."
        "Try again, or send `store: false`, which does not use the store. The log contains the disk error.";
    DiskFull "disk_full" Route (507 Overloaded)
        "The server's disk has no space for objects of clients: the free space is reserved for the ledger and the keys."
        "Delete files or responses, send `store: false`, or try again later. Calls that store nothing are still answered. \
         Operators: free disk space, or move `objects_dir` to another disk; `objects.min_free_disk` sets the reserved space.";
    BackgroundFull "background_full" Route (429 RateLimit)
        "The server runs the maximum number of background responses."
        "Wait until some of them have ended, or send `background: false`.";
    TooManyLookUps "too_many_look_ups" Route (503 Overloaded)
        "The server is answering the maximum number of trace requests (`GET /v1/requests/ID`)."
        "Try again shortly.";
    ModelUnpriced "model_unpriced" Hold (503 Internal)
        "The model has no price today, and Headrace serves no model for free by accident."
        "Operators: set a price under `[[prices]]`.";

    ContentPolicy "content_policy" Moderate (400 ContentPolicy)
        "A content rule matched; the message names the rule, never the words."
        "Rules check every text of a call that the model may see: messages, names, tools with their schemas, tool calls and \
         results, and prompts given as token ids, decoded. Word rules ignore case, accents and invisible characters. They \
         count any white space as one space, full-width and styled letters as plain letters, and letters of other scripts \
         that look like Latin letters as Latin letters. Regular expressions check the text as written, and again in each of \
         these forms (with case and accents). Phrases also match if one message ends with their beginning and the next \
         message, or the user's next message, begins with their end. Rules do not find words with other characters between \
         their letters, words with digits for letters, or words that are split.";

    ExtraUnpriced "extra_unpriced" Render (400 InvalidRequest)
        "The call requests an extra that a provider charges for in addition to tokens, and the extra has no price here."
        "Remove the field that the message names. Operators: set a price under `[[prices]]` (`per_search`, or prices with \
         `tier` or `above`), or list the extra in `allow_unpriced` of the upstream.";
    UrlNotAllowed "url_not_allowed" Render (400 InvalidRequest)
        "The call contains an address for the model's server to fetch, and the server may not receive this address."
        "Send the data in the body (`data:`). All reasons get the same answer. Operators: `urls` of the upstream is `off`, \
         `public` or a list of hosts.";
    ContextLengthExceeded "context_length_exceeded" Render (400 InvalidRequest)
        "The prompt and the answer together exceed the context window, or can never fit the engine's KV cache."
        "Shorten the prompt or lower `max_tokens`. The message has the counts: the prompt's tokens, `max_tokens`, the \
         window, and the maximum that would fit.";
    TierLengthExceeded "tier_length_exceeded" Render (403 Permission)
        "The prompt or its answer is longer than the tier of this key allows."
        "Shorten the prompt or ask for fewer tokens, within the bound that the message names. Operators: \
         `headrace tiers change TIER --max-context-tokens N` or `--max-output-tokens N`, or `headrace tiers assign`.";
    EmptyPrompt "empty_prompt" Parse (400 InvalidRequest)
        "The prompt or text is empty, or contains only white space and invisible characters."
        "Send a text with at least one visible character, or remove the text. An empty message gets `empty_string`.";
    WrongKindOfModel "wrong_kind_of_model" Render (400 InvalidRequest)
        "The model is of the wrong kind for the endpoint: an encoder for text generation, a text generator for vectors, a \
         reranker for embeddings, or the reverse."
        "`GET /v1/models` lists the models that your key may use. The message names the output of the model.";
    NoChatTemplate "no_chat_template" Render (400 InvalidRequest)
        "The model has no chat template."
        "Use `POST /v1/completions`, or add `chat_template.jinja` to the model's directory.";
    TemplateError "template_error" Render (400 InvalidRequest)
        "The model's chat template rejected the conversation (roles out of order, for example), or exceeded its bounds of \
         work or output."
        "The message contains the template's error text.";
    InvalidJsonSchema "invalid_json_schema" Render (400 InvalidRequest)
        "The schema of the answer is invalid, matches nothing, breaks a rule of strict schemas, or uses a keyword that \
         Headrace cannot enforce."
        "The message names the keyword, its place in the schema, and an alternative. Strict schemas follow OpenAI's rules, \
         with OpenAI's error texts.";
    InvalidGrammar "invalid_grammar" Render (400 InvalidRequest)
        "The regular expression, list of choices or grammar for the answer is invalid, or matches nothing."
        "The message describes the fault.";
    FormTooCostly "form_too_costly" Render (400 InvalidRequest)
        "The format of the answer needs more to compile than its bound allows: bytes, nesting, memory, or time."
        "Use fewer alternatives, shorter patterns and lists, or smaller counts. The message names the bound.";
    FormsBusy "forms_busy" Render (503 Overloaded)
        "The maximum number of answer formats is being compiled, or the processors are too busy to compile one in time."
        "Try again in a moment. A format that was compiled recently is not compiled again.";
    RenderFailed "render_failed" Render (500 Internal)
        "The prompt could not be rendered because of a fault of the server."
        "Nothing was charged.";

    CallTooLarge "call_too_large" Render (400 InvalidRequest)
        "The call could use more memory than one call may use (`gateway.max_call_memory`), or than all calls of a key may use."
        "Reduce the parameter that `param` names, or stream. The message has both numbers.";
    KeyMemoryFull "key_memory_full" Render (429 RateLimit)
        "The key's calls in flight use all of the key's memory (`gateway.max_key_memory`)."
        "Wait until some calls have ended, and read answers promptly: unread answers count.";
    MemoryFull "memory_full" Render (503 Overloaded)
        "All calls in flight together use all of the call memory (`gateway.max_memory`)."
        "Try again.";
    KeyRenderingFull "key_rendering_full" Parse (429 RateLimit)
        "Other long requests of this key are being read, and their bytes reach the key's half of \
         `gateway.max_render_bytes_at_once`. None of them was done in time."
        "Send fewer long requests at the same time.";
    RenderingFull "rendering_full" Parse (503 Overloaded)
        "Other long requests are being read, and their bytes reach `gateway.max_render_bytes_at_once`. None of them was done in time."
        "Try again.";

    RequestsPerMinute "requests_per_minute" Hold (429 RateLimit)
        "The limit on requests per minute is reached; a minute's requests may come at once."
        "`limit.limit` is the limit, and `limit.observed` is the current use plus this call.";
    TokensPerMinute "tokens_per_minute" Hold (429 RateLimit)
        "The limit on tokens per minute is reached; input and output count together."
        "Lower `max_tokens` to let more calls run at the same time. Until a call ends, it counts with its prompt plus all \
         tokens that it may generate; then it counts with its use.";
    Concurrency "concurrency" Hold (429 RateLimit)
        "The limit on calls in flight is reached."
        "Wait until a call has ended.";

    OutOfMoney "out_of_money" Hold (402 Billing)
        "The balance does not cover the maximum cost of this call, even if all calls in flight returned their holds."
        "Add credit (`headrace credit`), or lower `max_tokens` or `n`. There is no `Retry-After`: waiting does not help.";
    HeldInFlight "held_in_flight" Hold (402 Billing)
        "The balance would cover the call, but your own calls in flight hold the money."
        "Wait for these calls, add credit, or lower `max_tokens`. There is a `Retry-After`.";
    BudgetExceeded "budget_exceeded" Hold (402 Billing)
        "The project's budget does not cover the call."
        "The message names the budget, the money spent, held and needed, and the start of the next period.";
    BudgetRuleExceeded "budget_rule_exceeded" Hold (402 Billing)
        "A budget in dollars does not cover the call in its current window."
        "The message names the budget, its subject, limit, use, and when its window ends; `Retry-After` is the time until then. \
         Lower `max_tokens`, or let an operator raise the budget (`headrace budgets raise`).";
    QuotaExceeded "quota_exceeded" Hold (429 RateLimit)
        "A budget of tokens or requests does not cover the call in its current window."
        "The message names the budget, its subject, limit, use, and when its window ends; `Retry-After` is the time until then. \
         An operator can raise the budget (`headrace budgets raise`).";
    CostOverflow "cost_overflow" Hold (400 InvalidRequest)
        "The maximum cost of this call does not fit 64-bit nano-dollars."
        "Request fewer tokens.";
    UnknownProject "unknown_project" Hold (402 Billing)
        "The project has no account yet."
        "Grant credit to the project's organisation.";
    UnknownOrg "unknown_org" Hold (402 Billing)
        "The organisation has no account yet."
        "Grant credit to the organisation.";
    JournalUnavailable "journal_unavailable" Hold (503 Overloaded)
        "The ledger cannot be written at the moment (a full or failing disk), so nothing runs and nothing is charged."
        "The ledger recovers by itself when the disk works again.";
    LedgerUnavailable "ledger_unavailable" Hold inside
        "The form of `journal_unavailable` inside the ledger and in its log."
        "Callers see `journal_unavailable`.";
    LedgerBusy "ledger_busy" Hold inside
        "The queue of changes that wait for the disk is full; the message names both numbers."
        "Callers see `journal_unavailable`.";
    IdempotencyInFlight "idempotency_in_flight" Hold (409 InvalidRequest)
        "A request with the same `Idempotency-Key` is still running."
        "Wait for the time in `Retry-After`, then send the same request again. It gets the answer of the first one.";
    IdempotencyMismatch "idempotency_mismatch" Hold (422 InvalidRequest)
        "The `Idempotency-Key` was used for another request of this project: another path, query or body."
        "Use a new key for each new request, and the same key only to repeat a request unchanged.";
    IdempotencyAnswerGone "idempotency_answer_gone" Hold (409 InvalidRequest)
        "The request with this `Idempotency-Key` has run and was charged, but its answer is not stored."
        "The request does not run again with this key. The client left before the answer was complete, the answer was longer \
         than `idempotency.max_answer`, it is older than `idempotency.keep`, or the space of `idempotency.max_total` was used \
         up. `GET /v1/requests/ID` with the id in the message shows what the request cost. Use a new key to run it again.";
    IdempotencyReplay "idempotency_replay" Hold inside
        "The request with this idempotency key has run and was charged; its stored answer is returned again."
        "Callers do not see an error.";
    TooManyIdempotencyKeys "too_many_idempotency_keys" Hold (429 RateLimit)
        "The project has used the maximum number of idempotency keys within 24 hours; the message names the number."
        "Send fewer keys.";
    UnknownBudgetRule "unknown_budget_rule" Hold inside
        "The ledger has no budget rule of this name."
        "List the rules with `headrace budgets list`. This error occurs in operators' commands.";
    OlderGateway "older_gateway" Hold inside
        "A change of the ledger needs a journal format that a live gateway cannot read."
        "Update all gateways, then repeat the command. `headrace status` lists the gateways and their versions.";
    UnknownLot "unknown_lot" Hold inside
        "The ledger has no lot with this id, or it has ended."
        "List lots with `headrace lots list`. This error occurs in operators' commands.";
    UnknownFreeTier "unknown_free_tier" Hold inside
        "The ledger has no free tier of this name."
        "List them with `headrace free-tiers list`. This error occurs in operators' commands.";
    RefundExceedsCharge "refund_exceeds_charge" Hold inside
        "A refund is more than what is left of its charge; the message names all three amounts."
        "Refund less. This error occurs in operators' commands.";
    RefundReferenceUsed "refund_reference_used" Hold inside
        "The reference was used for another refund of the organisation."
        "Choose another reference. This error occurs in operators' commands.";
    ProjectTaken "project_taken" Hold inside
        "A project of this name belongs to another organisation."
        "Choose another name. This error occurs in operators' commands.";
    UnknownHold "unknown_hold" Hold inside
        "The hold does not exist, or was resolved long ago."
        "This error stays inside the ledger. A caller never causes it.";
    AlreadyResolved "already_resolved" Hold inside
        "The hold was settled or released before; nothing is charged twice."
        "This error stays inside the ledger. With it a repeated settlement learns that the first one reached the disk.";
    DuplicateHold "duplicate_hold" Hold inside
        "A hold with this id exists."
        "This error stays inside the ledger. A caller would see status 500.";
    Invalid "invalid" Hold inside
        "A field of a ledger command is not valid; the message names the field."
        "This error occurs in operators' commands.";
    Overflow "overflow" Hold inside
        "A sum does not fit 64-bit nano-dollars."
        "Callers see `cost_overflow`.";
    LedgerInconsistent "ledger_inconsistent" Hold (500 Internal)
        "The ledger refused a change that would break one of its rules. Nothing was changed."
        "This is a fault. Report it with the request id, and run `headrace ledger verify`.";

    QueueFull "queue_full" Place (503 Overloaded)
        "The engine's queue is full; the message names the bound that is reached."
        "Try again after the time in the answer, which is computed from the queue. Nothing was charged.";
    DeadlineTooShort "deadline_too_short" Place (503 Overloaded)
        "The first token cannot be ready within the call's `timeout` (seconds from its arrival)."
        "The message names the waiting time. It is computed from the queue by class and turn, and from the recent cost of \
         prompt tokens and generated tokens. If the call's own prompt alone takes longer than the `timeout`, the status is \
         400, with `param` `timeout`. Nothing was charged.";
    QueueExpired "queue_expired" Decode (503 Overloaded)
        "The call was still waiting at its deadline and was dropped before any computation."
        "Try again after the time in the answer, which is computed from the waiting calls. Nothing was charged.";
    CallTooLong "call_too_long" Decode (504 Timeout)
        "The call, including its waiting time, reached the lifetime of its hold (`gateway.hold_lifetime`, less up to a \
         minute to settle the call)."
        "Request fewer tokens, stream, or call when fewer calls wait. Undelivered output is not charged.";
    EngineUnavailable "engine_unavailable" Place (503 Overloaded)
        "No worker serves the model at the moment, or the worker is stopping."
        "Nothing was charged before the first byte.";
    UpstreamUnreachable "upstream_unreachable" Place (502 Internal)
        "Headrace could not connect to the upstream of this model, or to another of its targets."
        "Nothing was charged. Operators: `headrace upstreams` shows the last error of each upstream.";
    UpstreamMisconfigured "upstream_misconfigured" Upstream (502 Internal)
        "The upstream rejects the configured key, or does not have the configured model."
        "Nothing was charged, and waiting does not help. Operators: `headrace upstreams` and the attempts in the call's \
         trace have the upstream's own text, which callers do not see.";
    UpstreamOverloaded "upstream_overloaded" Upstream (503 Overloaded)
        "The upstream, or our share of it, is full, and no other target accepted the call."
        "Nothing was charged. `Retry-After` is the upstream's value, if it sent one.";
    UpstreamTimeout "upstream_timeout" Upstream (504 Timeout)
        "The upstream exceeded a timeout: for the connection, for the head of its answer, or between two pieces of the answer."
        "Undelivered output is not charged. The bounds are the upstream's `timeouts`.";
    UpstreamRefused "upstream_refused" Upstream (400 InvalidRequest)
        "The upstream rejected the request; the message has the upstream's text."
        "Nothing was charged. The fault is usually in a parameter that Headrace passes on unchanged.";
    UpstreamFailed "upstream_failed" Upstream (502 Internal)
        "The upstream failed: an error, an answer that broke off, an answer in a wrong dialect, or a redirect."
        "If nothing had been delivered, Headrace tried other targets first. Undelivered output is not charged.";
    UpstreamAnswerTooLarge "upstream_answer_too_large" Upstream (502 Internal)
        "The upstream sent too much: more bytes than the upstream's bounds, more than four times the requested amount, or \
         more than the memory of the key's calls (`gateway.max_key_memory`)."
        "If nothing had been delivered, Headrace tried other targets first. Undelivered output is not charged.";
    Untranslatable "untranslatable" Render (400 InvalidRequest)
        "The endpoint has no counterpart in the dialect of the model's upstreams."
        "The message names the endpoint that they have. A parameter without a counterpart is refused by its name, as \
         `unsupported_parameter`.";
    EngineFailed "engine_failed" Decode (500 Internal)
        "The computation of this call failed. Other calls continue."
        "Undelivered output is not charged. Its cost goes to the loss account.";
    NotFinite "not_finite" Decode (500 Internal)
        "The model computed values that are not numbers."
        "Report the model: the same model and prompt fail again. The call ends, its KV blocks never enter the cache, and \
         undelivered output is not charged.";
    FormLost "form_lost" Decode (400 InvalidRequest)
        "The answer could not follow its format any further: one token, or the whole answer, needed more work than its bound."
        "Use a format with fewer alternatives, shorter patterns and lists, or less ambiguity. The message has the bound. The \
         call ends, and others continue. The computed output is charged, as for a cancelled call.";
    AnswerOffForm "answer_off_form" Postprocess (502 Internal)
        "The finished answer does not have the requested format: it is not JSON, or does not match the schema. The message \
         names the position in the answer and the violated keyword."
        "Use a model that enforces formats. A whole answer is not charged. A stream ends with this error after the delivered \
         output. Operators: `structured.invalid` of the model sets whether such an answer is refused, requested again, or \
         passed on.";
    InternalError "internal_error" Postprocess (500 Internal)
        "A fault in the gateway, on this call alone."
        "Report the error with the request id. Undelivered output is not charged.";
}
