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
        "No such path."
        "The README lists the paths; the API's begin with `/v1/`. Where the path is one of them but for what a \
         wrong base URL does to it, the message names the right one. OpenAI's clients want the base URL with `/v1`, \
         Anthropic's without, neither with a slash at its end.";
    MethodNotAllowed "method_not_allowed" Connect (405 InvalidRequest)
        "The path exists with other methods."
        "The header `Allow` names them.";
    HeadTooLarge "head_too_large" Connect (431 RequestTooLarge)
        "The request's line and headers have more bytes than the message names or, over HTTP/1.1, are more than 100 headers."
        "Send fewer or shorter ones; the bound is `server.max_header`. Over HTTP/1.1 the connection is closed; over HTTP/2 a \
         head of more than twice as many bytes is answered without a body.";
    BadHead "bad_head" Connect (400 InvalidRequest)
        "What came is not the head of an HTTP/1.1 request; the message says what is wrong with it."
        "The connection is closed. It may have been TLS to a plain port, another protocol, or a header that is none.";
    HeaderTimeout "header_timeout" Connect (408 Timeout)
        "The request's headers were not whole within the named number of seconds."
        "Send the request again.";
    AmbiguousLength "ambiguous_length" Connect (400 InvalidRequest)
        "The head does not say in one way where its request ends."
        "`content-length` twice, or with `transfer-encoding`, or not a number; any `transfer-encoding` but \
         `chunked` alone; or something behind a request to `upgrade`. The connection is closed. Send one of them; \
         look for a proxy that adds its own.";
    BadHost "bad_host" Connect (400 InvalidRequest)
        "The request does not name its host once (RFC 9112 §3.2)."
        "An HTTP/1.1 request named none, or several. The connection is closed. Send one `host` header.";
    TooManyConnections "too_many_connections" Connect (503 Overloaded)
        "The server has as many connections with calls in flight as it takes, of everybody or of your address."
        "Reuse connections; raise `server.max_connections` or `server.max_connections_per_peer`.";
    TooManyRefusals "too_many_refusals" Connect (429 RateLimit)
        "So many requests from your address showed no good key, or no path that is here, that they are not looked \
         at any more."
        "The connection is closed, and there is no trace. Good keys of the same address are served. The bound is \
         `server.max_refusals_per_peer`.";
    ShuttingDown "shutting_down" Connect (503 Overloaded)
        "The server is draining: it takes no new calls and finishes those in flight."
        "Try again in a moment, or on another instance. In a stream: the drain's time was over and the call was cut \
         off; what was not delivered is not charged.";

    MissingApiKey "missing_api_key" Authenticate (401 Authentication)
        "No API key was given."
        "Send `Authorization: Bearer sk-…` or `x-api-key: sk-…`.";
    InvalidApiKey "invalid_api_key" Authenticate (401 Authentication)
        "The key is unknown, revoked or malformed: all three are answered alike."
        "`headrace keys` creates one.";
    ExpiredApiKey "expired_api_key" Authenticate (401 Authentication)
        "The key was good and its time is over."
        "Ask for a new one.";
    ConflictingCredentials "conflicting_credentials" Authenticate (401 Authentication)
        "`Authorization` and `x-api-key` hold different credentials."
        "Send one.";
    CredentialMissing "credential_missing" Authenticate inside
        "In traces: no credential was presented."
        "The caller was told `missing_api_key`.";
    CredentialMalformed "credential_malformed" Authenticate inside
        "In traces: what was presented cannot be a key."
        "The caller was told `invalid_api_key`.";
    CredentialConflicting "credential_conflicting" Authenticate inside
        "In traces: two different credentials."
        "The caller was told `conflicting_credentials`.";
    CredentialWithoutScheme "credential_without_scheme" Authenticate inside
        "In traces: `Authorization` held what looks like a key, without `Bearer` before it."
        "The caller was told so, under the code `invalid_api_key`; whether it is a key was not asked.";
    KeyUnknown "key_unknown" Authenticate inside
        "In traces: no such key."
        "The caller was told `invalid_api_key`.";
    KeyRevoked "key_revoked" Authenticate inside
        "In traces: the key was revoked."
        "The caller was told `invalid_api_key`.";
    KeyExpired "key_expired" Authenticate inside
        "In traces: the key's time is over."
        "The caller was told `expired_api_key`.";

    RequestTooLarge "request_too_large" Receive (413 RequestTooLarge)
        "The body has more bytes than it may; the message names the bound in bytes."
        "Shorten it, or raise `server.max_body`.";
    BodyTimeout "body_timeout" Receive (408 Timeout)
        "The body made no progress for the named number of seconds."
        "Send the request again; look for a proxy that buffers.";
    IncompleteBody "incomplete_body" Receive (400 InvalidRequest)
        "The body broke off before its `content-length`, or its framing is broken."
        "";
    TooManyPieces "too_many_pieces" Receive (400 InvalidRequest)
        "The body came in far more chunks than its bytes need; the message names both numbers."
        "Send it in larger chunks, or with a `content-length`.";
    UnsupportedEncoding "unsupported_encoding" Receive (415 InvalidRequest)
        "A `content-encoding` other than `identity`."
        "Compressed bodies are not opened: send the JSON as it is.";
    UnsupportedMediaType "unsupported_media_type" Receive (415 InvalidRequest)
        "The body must be `content-type: application/json`."
        "";
    RequestMemoryPerKey "request_memory_per_key" Receive (429 RateLimit)
        "The heads and bodies of this key's calls that are being read or answered fill the key's share of memory, \
         which the message names in bytes."
        "Send fewer large requests at a time, or raise `server.request_memory_per_key`.";
    RequestMemory "request_memory" Receive (503 Overloaded)
        "The heads and bodies of all calls that are being read or answered fill the memory that there is for them."
        "Try again shortly; for the operator: `server.request_memory`.";

    InvalidJson "invalid_json" Parse (400 InvalidRequest)
        "The body is not one JSON object in UTF-8."
        "The message says where it breaks. `NaN` and `Infinity` are not JSON.";
    JsonTooDeep "json_too_deep" Parse (400 InvalidRequest)
        "Objects and arrays stand too deep inside each other."
        "The message names the bound (64 unless configured). Flatten it.";
    DuplicateKey "duplicate_key" Parse (400 InvalidRequest)
        "An object names the same key twice, and so has no single meaning."
        "Keep one.";
    MissingRequiredParameter "missing_required_parameter" Parse (400 InvalidRequest)
        "A required parameter is missing."
        "Add it.";
    UnknownParameter "unknown_parameter" Parse (400 InvalidRequest)
        "There is no such parameter. It is refused, because dropping it could change the answer."
        "Leave it out or mend its spelling.";
    UnsupportedParameter "unsupported_parameter" Parse (400 InvalidRequest)
        "The parameter exists elsewhere but is not supported here."
        "The message says what to use instead. Examples: `response_format` other than text, `chat_template`, \
         `guided_json`, `reasoning_effort`.";
    UnsupportedValue "unsupported_value" Parse (400 InvalidRequest)
        "The parameter is supported, this value of it is not."
        "The message names those that are.";
    UnsupportedContent "unsupported_content" Parse (400 InvalidRequest)
        "A content part is not text. Images, audio and files are not supported."
        "";
    InvalidType "invalid_type" Parse (400 InvalidRequest)
        "The value has the wrong JSON type."
        "The message names the right one.";
    InvalidValue "invalid_value" Parse (400 InvalidRequest)
        "The value has the right type and makes no sense."
        "Alone, or with the model: an id outside the vocabulary, `min_tokens` above `max_tokens`, a role in a place \
         where it cannot stand.";
    IntegerBelowMinValue "integer_below_min_value" Parse (400 InvalidRequest)
        "The whole number is too small."
        "The message names the least. Negative `max_tokens` does not mean \"unlimited\" here.";
    IntegerAboveMaxValue "integer_above_max_value" Parse (400 InvalidRequest)
        "The whole number is too large."
        "The message names the most (`n` and `prompt × n` have bounds of their own).";
    DecimalBelowMinValue "decimal_below_min_value" Parse (400 InvalidRequest)
        "The number is too small."
        "The message names the least.";
    DecimalAboveMaxValue "decimal_above_max_value" Parse (400 InvalidRequest)
        "The number is too large."
        "The message names the most, such as 2 for `temperature`.";
    ArrayAboveMaxLength "array_above_max_length" Parse (400 InvalidRequest)
        "The list has too many items."
        "The message names the most.";
    EmptyArray "empty_array" Parse (400 InvalidRequest)
        "The list has no items."
        "It needs at least one.";
    ObjectAboveMaxProperties "object_above_max_properties" Parse (400 InvalidRequest)
        "The object has too many entries."
        "Or the free-form values of all tool schemas and arguments together are too many.";
    StringAboveMaxLength "string_above_max_length" Parse (400 InvalidRequest)
        "The string is too long."
        "The message names the most bytes.";
    EmptyString "empty_string" Parse (400 InvalidRequest)
        "The string is empty."
        "It must not be.";

    EndpointNotEntitled "endpoint_not_entitled" Authorize (403 Permission)
        "This key may not call this endpoint."
        "Ask for a key that may, or use another endpoint.";
    ModelNotFound "model_not_found" Route (404 NotFound)
        "There is no model of that name, or it is not this key's to use: both are answered alike."
        "`GET /v1/models` lists those that you may use. A name is never taken as a path.";
    RegionNotAllowed "region_not_allowed" Route (403 Permission)
        "The calls of this key, or of its organisation, are pinned to regions, and the model is offered in none of them."
        "The message names the pin, its regions and those that the model is offered in. `GET /v1/models` lists what is offered where \
         your calls may be worked on. Operators: `region` of `[[upstreams]]` and `server.region` say where models are, `headrace orgs \
         regions` and `headrace keys regions` where calls may be.";
    RequestNotFound "request_not_found" Route (404 NotFound)
        "There is no trace of this request for your project."
        "The id is wrong, belongs to somebody else, is of a `GET` (calls are traced, `GET`s are not), or is older \
         than what is kept. All are answered alike. The id of an answer (`chatcmpl-…`, `cmpl-…`, `msg_…`) finds the \
         same trace as its request's (`req_…`, header `x-request-id`).";
    ResponseNotFound "response_not_found" Route (404 NotFound)
        "There is no such response for your project."
        "The id is wrong, belongs to somebody else, or is of a response that was not stored (`store: false`), was deleted, or is \
         older than what is kept (`objects.retention`). All are answered alike.";
    PreviousResponseNotFound "previous_response_not_found" Parse (400 InvalidRequest)
        "The response that this one is to go on from, or one that that goes on from, is not there, or has not ended."
        "See `response_not_found`; wait for a response in the background to end. Otherwise send the whole conversation as `input`.";
    ItemNotFound "item_not_found" Parse (400 InvalidRequest)
        "An `item_reference` names an item that is not there, whether it never was, is gone or is another project's."
        "Send the item itself, or store the response that it is of.";
    ConversationNotFound "conversation_not_found" Route (404 NotFound)
        "There is no such conversation, or no such item of it, for your project."
        "The id is wrong, belongs to somebody else, was deleted, or nothing was added to it for `objects.retention`. All are \
         answered alike.";
    ResponseNotStreamed "response_not_streamed" Route (400 InvalidRequest)
        "The events of this response were not kept."
        "Only those of a response that was created with both `background: true` and `stream: true` are. Ask for it without `stream`.";
    ResponseNotInBackground "response_not_in_background" Route (400 InvalidRequest)
        "Only a response in the background can be cancelled by its id."
        "Close the connection that the response comes on.";
    FileNotFound "file_not_found" Route (404 NotFound)
        "There is no such file for your project."
        "The id is wrong, belongs to somebody else, was deleted, or the file has expired (`expires_after`). All are answered alike.";
    UploadNotFound "upload_not_found" Route (404 NotFound)
        "There is no such upload for your project."
        "The id is wrong, belongs to somebody else, or the upload is long over. All are answered alike.";
    BatchNotFound "batch_not_found" Route (404 NotFound)
        "There is no such batch for your project."
        "The id is wrong, belongs to somebody else, was deleted, or is of a batch that ended longer ago than is kept \
         (`objects.retention`). All are answered alike.";
    BadForm "bad_form" Parse (400 InvalidRequest)
        "The body is not the form that this path takes."
        "Send `multipart/form-data` with the fields that the message names, as the official SDKs do.";
    FileTooLarge "file_too_large" Parse (413 RequestTooLarge)
        "The file has more bytes than one may have."
        "Split it; the bound is `objects.max_file`.";
    UploadNotPending "upload_not_pending" Route (400 InvalidRequest)
        "The upload was completed or cancelled, or its time is over."
        "Create another one, and complete it within an hour.";
    UploadMismatch "upload_mismatch" Route (400 InvalidRequest)
        "The parts are not what the upload was created for: an unknown one, one twice, another number of bytes, or another MD5 sum."
        "The message says which. Send the missing parts, or create another upload.";
    BatchNotEnded "batch_not_ended" Route (400 InvalidRequest)
        "The batch has not ended: there are no results yet, and it cannot be deleted."
        "Ask for it until it has ended, or cancel it.";
    BatchEnded "batch_ended" Route (409 InvalidRequest)
        "The batch has ended: there is nothing to cancel."
        "Its results stand in its files.";
    BatchesFull "batches_full" Route (429 RateLimit)
        "The project has as many batches under way as it may have."
        "Wait for some of them, or cancel some. The bound is `objects.max_open_batches_per_project`.";
    BadPage "bad_page" Route (400 InvalidRequest)
        "A parameter of the query is not one that this path has."
        "`limit` is 1 to 100, `order` is `asc` or `desc`, `after` is the id of an item, `starting_after` a sequence number.";
    ObjectsFull "objects_full" Route (413 RequestTooLarge)
        "What was to be stored, or what it goes on from, is more than is kept; the message names the bound."
        "Send `store: false`, start a new conversation, delete what is not needed, or raise the bound (`objects.*`).";
    ObjectsUnavailable "objects_unavailable" Route (503 Overloaded)
        "What clients store cannot be written or read now."
        "Try again; `store: false` needs none of it. The log says what is wrong with the disk.";
    DiskFull "disk_full" Route (507 Overloaded)
        "The server's disk has no room for what clients store: what is free is left to the ledger and the keys."
        "Delete files or responses, send `store: false`, or try again later. Calls that store nothing are answered. Operators: make \
         room, or put `objects_dir` on another disk; `objects.min_free_disk` is what is left free.";
    BackgroundFull "background_full" Route (429 RateLimit)
        "As many responses are worked on in the background as are taken at once."
        "Wait for some of them, or send `background: false`.";
    TooManyLookUps "too_many_look_ups" Route (503 Overloaded)
        "As many questions for traces (`GET /v1/requests/ID`) are being answered as are taken at once."
        "Try again shortly.";
    ModelUnpriced "model_unpriced" Hold (503 Internal)
        "The model has no price today, and nothing is free by accident."
        "Operators: set one under `[[prices]]`.";

    ContentPolicy "content_policy" Moderate (400 ContentPolicy)
        "A rule on content matched; the message names the rule, never the words."
        "Rules look at every text of a call that the model may see: messages, names, tools with their schemas, tool \
         calls and results, and prompts given as token ids, decoded. Words are compared without case, accents and \
         invisible characters, any white space counts as one space, full-width and styled letters as plain ones; \
         letters of other scripts that look Latin as the Latin ones; regular expressions see the text as written and \
         once more in each of these forms (with case and accents). Phrases are also found where one message ends with \
         their beginning and the next one, or the next of the user, begins with their end. What rules do not see: words \
         spelt with other characters between their letters, with digits for letters, or split within a word.";

    ExtraUnpriced "extra_unpriced" Render (400 InvalidRequest)
        "The call asks for something that a provider charges for beside tokens, and it has no price here."
        "The message names the field. Leave it out. Operators: set a price under `[[prices]]` (`per_search`, or prices with `tier` or \
         `above`), or list the extra in `allow_unpriced` of the upstream.";
    UrlNotAllowed "url_not_allowed" Render (400 InvalidRequest)
        "The call names an address that the model's server would fetch, and may not be handed."
        "All reasons are answered alike. Send the data in the body (`data:`). Operators: `urls` of the upstream is `off`, `public` or a \
         list of hosts.";
    ContextLengthExceeded "context_length_exceeded" Render (400 InvalidRequest)
        "Prompt and answer together do not fit the context window, or never fit the engine's KV cache."
        "The message has the counts: the prompt's tokens, `max_tokens`, the window, and the most that would fit. \
         Shorten the prompt or lower `max_tokens`.";
    EmptyPrompt "empty_prompt" Parse (400 InvalidRequest)
        "The prompt, or the text, says nothing: it is empty, or holds only white space and characters that are not visible."
        "Send a text with at least one visible character, or leave it out. A message that says nothing is `empty_string`.";
    WrongKindOfModel "wrong_kind_of_model" Render (400 InvalidRequest)
        "The model is of another kind than the endpoint needs: an encoder where text is to be generated, a model that generates \
         text where vectors are asked for, a reranker where embeddings are, or the other way round."
        "`GET /v1/models` lists what your key may use; the message says what the model makes.";
    NoChatTemplate "no_chat_template" Render (400 InvalidRequest)
        "The model has no chat template."
        "Use `POST /v1/completions`, or add `chat_template.jinja` to the model's directory.";
    TemplateError "template_error" Render (400 InvalidRequest)
        "The model's own template turned the conversation down (roles out of order, for example), or ran past its \
         bounds of work or output."
        "The message has the template's words.";
    InvalidJsonSchema "invalid_json_schema" Render (400 InvalidRequest)
        "The schema that the answer is to have is none, is fitted by nothing, breaks a rule of strict schemas, or uses a \
         keyword that no answer can be held to here."
        "The message names the keyword, its place in the schema, and what to write instead. Strict schemas have OpenAI's rules, \
         told in its words.";
    InvalidGrammar "invalid_grammar" Render (400 InvalidRequest)
        "The regular expression, list of choices or grammar that the answer is to have cannot be read, or is fitted by nothing."
        "The message says what is wrong with it.";
    FormTooCostly "form_too_costly" Render (400 InvalidRequest)
        "What the answer is to have takes more to compile than may be spent on it: bytes, nesting, memory, or time."
        "The message has the bound. Fewer alternatives, shorter patterns and lists, and smaller counts take less.";
    FormsBusy "forms_busy" Render (503 Overloaded)
        "As many formats of answers are being compiled as are at once, or the processors are too busy to compile one in time."
        "Try again in a moment. A format that was compiled lately is not compiled again.";
    RenderFailed "render_failed" Render (500 Internal)
        "The prompt could not be rendered for a reason on this side."
        "Nothing was charged.";

    CallTooLarge "call_too_large" Render (400 InvalidRequest)
        "The call could take more memory than one may (`gateway.max_call_memory`, or what a key's calls may have at \
         all)."
        "The message has both numbers, `param` names what makes it large. Ask for less of it, or stream.";
    KeyMemoryFull "key_memory_full" Render (429 RateLimit)
        "The key's calls in flight have taken what they may (`gateway.max_key_memory`)."
        "Wait for some to end, and read answers promptly: unread ones count.";
    MemoryFull "memory_full" Render (503 Overloaded)
        "All calls in flight have taken what they may (`gateway.max_memory`)."
        "Try again.";
    KeyRenderingFull "key_rendering_full" Parse (429 RateLimit)
        "Long requests of this key are being read already, as many bytes of them as half of \
         `gateway.max_render_bytes_at_once`, and none was done in time."
        "Send fewer at once.";
    RenderingFull "rendering_full" Parse (503 Overloaded)
        "Long requests of all callers are being read already, as many bytes of them as \
         `gateway.max_render_bytes_at_once`, and none was done in time."
        "Try again.";

    RequestsPerMinute "requests_per_minute" Hold (429 RateLimit)
        "Requests a minute; a minute's worth may come at once."
        "`limit.limit` is the limit, `limit.observed` what is used plus this call.";
    TokensPerMinute "tokens_per_minute" Hold (429 RateLimit)
        "Tokens a minute, input and output together."
        "A call counts with its prompt plus all it may generate until it ends, then with what it used: a lower \
         `max_tokens` lets more calls through at once.";
    Concurrency "concurrency" Hold (429 RateLimit)
        "Calls in flight."
        "Wait for one to end.";

    OutOfMoney "out_of_money" Hold (402 Billing)
        "Even with everything in flight given back, the balance does not cover what this call can cost."
        "There is no `Retry-After`: waiting does not help. Add credit (`headrace credit`), or lower `max_tokens` or \
         `n`.";
    HeldInFlight "held_in_flight" Hold (402 Billing)
        "The balance would cover the call, but your own calls in flight hold it."
        "There is a `Retry-After`. Wait for them, add credit, or lower `max_tokens`.";
    BudgetExceeded "budget_exceeded" Hold (402 Billing)
        "The project's budget does not cover the call."
        "The message names budget, spent, held, needed, and when a period begins anew.";
    CostOverflow "cost_overflow" Hold (400 InvalidRequest)
        "What this call could cost does not fit 64-bit nano-dollars."
        "Ask for fewer tokens.";
    UnknownProject "unknown_project" Hold (402 Billing)
        "The project has no account yet."
        "Grant its organisation credit.";
    UnknownOrg "unknown_org" Hold (402 Billing)
        "The organisation has no account yet."
        "Grant it credit.";
    JournalUnavailable "journal_unavailable" Hold (503 Overloaded)
        "The ledger cannot be written now (a full or failing disk), so nothing runs and nothing is charged."
        "It recovers by itself when the disk does.";
    LedgerUnavailable "ledger_unavailable" Hold inside
        "The same inside the ledger and in its log."
        "Callers see `journal_unavailable`.";
    LedgerBusy "ledger_busy" Hold inside
        "More changes wait for the disk than the queue takes; the message names both numbers."
        "Callers see `journal_unavailable`.";
    IdempotencyInFlight "idempotency_in_flight" Hold inside
        "A call with this idempotency key is running: try again in a second."
        "(Idempotency keys are kept by the ledger, for the lines of batches; no HTTP header reaches them yet.)";
    IdempotencyMismatch "idempotency_mismatch" Hold inside
        "This idempotency key was used with another request."
        "Use a new key.";
    IdempotencyReplay "idempotency_replay" Hold inside
        "The call with this idempotency key has run and was charged: its stored answer is given again."
        "Not an error to callers.";
    TooManyIdempotencyKeys "too_many_idempotency_keys" Hold inside
        "The project has used as many keys within 24 hours as are remembered; the message names the number."
        "Send fewer keys.";
    ProjectTaken "project_taken" Hold inside
        "A project of that name belongs to another organisation."
        "Choose another name. (Operators' commands.)";
    UnknownHold "unknown_hold" Hold inside
        "No hold of that id is known, or it was resolved long ago."
        "Inside the ledger; a caller never causes it.";
    AlreadyResolved "already_resolved" Hold inside
        "The hold was settled or released before; nothing is charged twice."
        "Inside the ledger: how a repeated settlement learns that it had reached the disk.";
    DuplicateHold "duplicate_hold" Hold inside
        "A hold of that id exists."
        "Inside the ledger; 500 if a caller ever sees it.";
    Invalid "invalid" Hold inside
        "A field of a ledger command makes no sense; the message names it."
        "Operators' commands.";
    Overflow "overflow" Hold inside
        "A sum does not fit 64-bit nano-dollars."
        "Callers see `cost_overflow`.";
    LedgerInconsistent "ledger_inconsistent" Hold (500 Internal)
        "The ledger refused to break its own rule and changed nothing."
        "This is a fault: report it with the request id, and run `headrace ledger verify`.";

    QueueFull "queue_full" Place (503 Overloaded)
        "The engine's queue is full; the message names what is full and its bound."
        "When to try again is computed from the queue. Nothing was charged.";
    DeadlineTooShort "deadline_too_short" Place (503 Overloaded)
        "The first token cannot be there within the call's `timeout` (seconds from its arrival)."
        "The message says how much of that is waiting, computed from the queue by class and turn and from what \
         prompt and generated tokens cost lately. 400, with `param` `timeout`, where the call's own prompt takes \
         longer than that by itself. Nothing was charged.";
    QueueExpired "queue_expired" Decode (503 Overloaded)
        "The call waited past its deadline and was dropped before any of it was computed."
        "When to try again is computed from what still waits. Nothing was charged.";
    CallTooLong "call_too_long" Decode (504 Timeout)
        "The call, waiting included, lasted as long as its money is held for (`gateway.hold_lifetime`, less up to a \
         minute to settle it)."
        "What was not delivered is not charged. Ask for fewer tokens, stream, or call when less waits.";
    EngineUnavailable "engine_unavailable" Place (503 Overloaded)
        "No worker serves the model now, or it is stopping."
        "Nothing was charged before the first byte.";
    UpstreamUnreachable "upstream_unreachable" Place (502 Internal)
        "No connection to the upstream that answers for this model came about, nor to another one of its targets."
        "Nothing was charged. Operators: `headrace upstreams` shows what each one said last.";
    UpstreamMisconfigured "upstream_misconfigured" Upstream (502 Internal)
        "The upstream does not take the key that is configured for it, or has no model of the name that is."
        "Nothing was charged, and waiting does not help. Operators: `headrace upstreams` and the call's attempts in its trace \
         have the upstream's own words, which callers are not told.";
    UpstreamOverloaded "upstream_overloaded" Upstream (503 Overloaded)
        "The upstream turned the call away because it, or our share of it, is full, and no other target took it."
        "Nothing was charged. `Retry-After` is what the upstream said, where it did.";
    UpstreamTimeout "upstream_timeout" Upstream (504 Timeout)
        "The upstream took longer than is waited for it: for a connection, for the head of its answer, or between two \
         pieces of it."
        "What was not delivered is not charged. The bounds are the upstream's `timeouts`.";
    UpstreamRefused "upstream_refused" Upstream (400 InvalidRequest)
        "The upstream found fault with the request; the message has its words."
        "Nothing was charged. The fault is as a rule in a parameter that is sent on as it came.";
    UpstreamFailed "upstream_failed" Upstream (502 Internal)
        "The upstream failed: an error, an answer that broke off or was none of its dialect's, a redirect."
        "Where nothing had been delivered, other targets were tried first. What was not delivered is not charged.";
    UpstreamAnswerTooLarge "upstream_answer_too_large" Upstream (502 Internal)
        "The upstream sent more than its answer may have: more bytes than the upstream's bounds, more than four times what was asked \
         for, or more than the memory of the key's calls (`gateway.max_key_memory`)."
        "Where nothing had been delivered, other targets were tried first. What was not delivered is not charged.";
    Untranslatable "untranslatable" Render (400 InvalidRequest)
        "The endpoint has no counterpart in the dialect of the model's upstreams."
        "The message says which endpoint they have. A parameter that cannot be carried over is refused by its name, as \
         `unsupported_parameter`.";
    EngineFailed "engine_failed" Decode (500 Internal)
        "The computation of this call failed; others go on."
        "What was not delivered is not charged: it goes to the loss account.";
    NotFinite "not_finite" Decode (500 Internal)
        "The model gave values that are not numbers."
        "The call ends, its KV blocks never enter the cache, and what was not delivered is not charged. With one \
         model and prompt it happens again: report the model.";
    FormLost "form_lost" Decode (400 InvalidRequest)
        "The answer could not be held to its form any further: following the form took more work than one token, or the whole \
         answer, may take."
        "The call ends, and others continue. What was computed until then is charged, as for a cancelled call. The message has \
         the bound. A form with fewer alternatives, shorter patterns and lists or less ambiguity takes less.";
    AnswerOffForm "answer_off_form" Postprocess (502 Internal)
        "The finished answer is not of the form that was asked for: it is no JSON, or does not fit the schema. The message names \
         the place in the answer, and the keyword that is not kept."
        "A whole answer is not charged; a stream ends with this error behind what was delivered. Ask a model that holds answers to \
         their form. Operators: `structured.invalid` of the model says whether such an answer is refused, asked for once more, \
         or passed on.";
    InternalError "internal_error" Postprocess (500 Internal)
        "A fault in the gateway itself, on this call alone."
        "What was not delivered is not charged. Report it with the request id.";
}
