//! For each error code of operators: who can change it, the usual cause, and a sample response. Must not know how a
//! page looks.

use headrace_domain::AdminCode;

use super::who::Who;

/// The facts of a page that are not in the table of codes.
pub(super) struct AdminCause {
    pub(super) who: Who,
    /// The usual cause.
    pub(super) why: &'static str,
    /// A sample message, and its remedy. Empty if the code is never sent as a response.
    pub(super) message: &'static str,
    pub(super) remedy: &'static str,
    /// The field that the response names, if any.
    pub(super) field: Option<&'static str>,
}

macro_rules! field {
    () => {
        None
    };
    ($field:literal) => {
        Some($field)
    };
}

/// A row: code, who, why, message, remedy, and the field if the response names one. A missing row is a compile error.
macro_rules! causes {
    ($($code:ident $who:ident $why:literal $message:literal $remedy:literal $($field:literal)?;)*) => {
        pub(super) const fn cause(code: AdminCode) -> &'static AdminCause {
            match code {
                $(AdminCode::$code => &AdminCause {
                    who: Who::$who,
                    why: $why,
                    message: $message,
                    remedy: $remedy,
                    field: field!($($field)?),
                },)*
            }
        }
    };
}

causes! {
    NotSignedIn Asker "The request has no key, or the session is over. A session ends after a time without requests, and when its server stops."
        "the request has no valid session or key"
        "POST /admin/v1/session with a key or a link (headrace operators link), or `Authorization: Bearer` with an operator's key";
    BadCredential Asker "A link that was opened before, a key that was truncated when it was copied, or an API key (`sk-…`) instead of an operator's key (`hrop-…`)."
        "this key or link is not valid: it was never made, was used before, was revoked, or has expired"
        "headrace operators link ID makes a new link";
    TooManyAttempts Nobody "A script with an old key, or an attempt to guess keys."
        "too many keys or links were wrong: try again in 41 s" "";
    SignInRefused Owner "The provider writes other claims than the rules name, or the user is in none of the groups."
        "The sign-in is valid, and no rule of the identity provider gives a role. The claims: `email`, `groups`, `sub`."
        "a rule of `[[admin.sign_in]]` must match one of these claims";
    SignInFailed Asker "The page of the provider was open for more than ten minutes, or its address was opened a second time."
        "this browser has not begun a sign-in within the last ten minutes, or has ended it already"
        "begin again on the sign-in page";
    ProviderUnavailable Machine "A wrong `issuer`, a missing `ca_file`, or a provider that is down."
        "The identity provider cannot be used now: https://login.example.com/.well-known/openid-configuration: connection refused."
        "try again later, or sign in with a key or a link";
    UnknownProvider Asker "An old bookmark, or a provider that was renamed in the settings."
        "there is no such identity provider" "";
    Role Owner "A key or session of an operator with a role that the route does not allow."
        "the role viewer may not call this route: owner, admin may" "";
    Csrf Asker "A program that uses a browser's cookie, or a page of the console that stayed open during a new sign-in."
        "a change by a session needs the header `x-headrace-csrf`, which GET /admin/v1/session returns" "";
    Origin Asker "A page of another site, or a proxy before the listener that changes `Host` and keeps `Origin`."
        "a page of another site asked for this" "";
    Host Machine "A name that a proxy or a DNS entry gives the listener, and that is not configured."
        "this listener is not known by that name: ask by its address or as localhost, or set `admin.url`" "";
    NotFound Asker "A path of another version, a call without a stored trace, or a truncated id."
        "there is no such call, or its trace is no longer kept" "";
    Method Asker "A `GET` for a change, or the reverse."
        "this route does not take this method" "";
    Invalid Asker "A misspelt field, a field of another type, a body that is not JSON, or a value outside its bounds."
        "the body is not what this takes: unknown field `regoins`, expected one of `id`, `limits`, `regions`" "" "regoins";
    TooLarge Asker "A file sent instead of a few fields."
        "the body has more than 65536 bytes" "";
    TooSlow Asker "A client that starts a request and does not finish it."
        "the body took more than 10 s" "";
    TooManySubscribers Asker "Many open pages of the console, or a program that reconnects without closing."
        "there are 64 streams of events, as many as may be at once: close a page" "";
    UnknownOrg Asker "A misspelt id, or an organisation without a project."
        "there is no organisation `acme`" "headrace orgs list, or headrace orgs create ID";
    UnknownProject Asker "A misspelt id, or an id of another server."
        "there is no project `shop`" "headrace projects list, or headrace projects create ID --org ORG";
    UnknownKey Asker "An id of another server, or a secret instead of the id."
        "there is no key `key_7f3a2b`" "headrace keys list";
    UnknownAccount Asker "An id of another server, or of a user that an identity provider removed."
        "there is no account `usr_0ZpN3c8VwQ`" "headrace users list, or headrace service-accounts list";
    UnknownTier Asker "A misspelt name, or a tier that was removed."
        "there is no tier `basic`" "headrace tiers list, or headrace tiers create NAME";
    TierInUse Asker "The tier is still assigned to an organisation, a project or a key, perhaps a revoked one."
        "tier `basic` is assigned to project `red`, and cannot be removed before it is assigned to none" "headrace tiers unassign";
    UnknownInvoice Asker "A misspelt number, or the number of a credit note of another series."
        "there is no invoice `INV-12`" "headrace invoices list";
    InvoiceExists Asker "The invoice was made before, perhaps at another gateway."
        "INV-12 is the invoice of `acme` for 2026-11, and never changes" "headrace invoices show INV-12";
    MonthOpen Asker "The month has not ended in the time zone of the organisation."
        "2026-11 is not over in Europe/Berlin: nothing more may be charged to it" "headrace invoices draft";
    UnknownWebhook Asker "A misspelt name, or a webhook that is not in the settings."
        "there is no webhook `ops`" "headrace webhooks list";
    UnknownBudget Asker "A misspelt name, or a budget that was removed."
        "no budget daily: `headrace budgets list` shows all" "headrace budgets list";
    OlderGateway Owner "A rolling update that has not reached all gateways, or a gateway that was forgotten."
        "this needs journal format 5, and a live gateway reads formats up to 4: update all gateways (`headrace status` lists them), then try again" "update all gateways, then try again";
    UnknownOperator Asker "A name instead of the id, or an operator who was revoked."
        "there is no operator `op_9c41d0`" "headrace operators list";
    UnknownModel Asker "A name without a model, or an alias of several models."
        "no model `gpt-5` is served" "GET /admin/v1/models lists those that are";
    UnknownCheckpoint Asker "A name that is not in the folders of Hugging Face, Ollama, LM Studio or llama.cpp, or a user with folders that the server does not read."
        "`qwen3` could be any of several; give the whole name, or the path" "GET /admin/v1/checkpoints lists them";
    UnknownRoute Asker "A name with one model, or without a model."
        "there is no route `fast` to several models" "`headrace routes` lists them";
    UnknownUpstream Asker "A name that is no longer in the configuration."
        "there is no upstream `gpu`; there is openai, vllm" "`headrace upstreams` lists them";
    Exists Asker "An earlier creation of the same name, perhaps by the same script."
        "organisation `acme` is there already" "choose another name, or use the one that is there";
    LastOwner Owner "The first operator is the only owner until another owner is created."
        "this is the last owner, and only an owner can create another" "headrace operators create --name NAME --role owner makes another first";
    ProjectOfAnotherOrg Asker "Two organisations with projects of similar names."
        "project `shop` does not belong to organisation `acme`" "headrace projects list";
    ProjectTaken Asker "A project of that name with a replaced organisation and an unchanged ledger."
        "a project shop belongs to another organisation: choose another name" "";
    ProjectNotNamed Asker "Commands such as `headrace chat` borrow a key on the server's own machine, and one project must pay."
        "" "";
    Widens Asker "The organisation is pinned to regions, and the key names another region."
        "the organisation is pinned to de, and a key of it cannot be worked on in us: name only regions of the organisation's" "headrace orgs list shows where an organisation's calls may be";
    ReferenceUsed Asker "An invoice that was already booked with another amount."
        "reference \"invoice 17\" is used by a grant of $5" "headrace credit list shows it; choose another reference";
    UnknownLot Asker "A misspelt id, or a lot that has ended."
        "no lot lot_17: `headrace lots list` shows those that have not ended" "";
    UnknownFreeTier Asker "A misspelt name, or a free tier that was removed from the settings."
        "no free tier daily: `headrace free-tiers list` shows all" "";
    UnknownCharge Asker "The id of another server's call, or of a call that was refused, failed or free."
        "the ledger has no charge of hold_01997e2b-6f3a-7c41-9d54-0a6c1be2f7aa: no such call ended, or nothing was charged"
        "headrace requests lists calls with their charges";
    RefundExceedsCharge Asker "The same charge was refunded before under another reference."
        "hold_01997e2b-6f3a-7c41-9d54-0a6c1be2f7aa was charged $0.000123, and $0.000123 are refunded: $0.000001 more cannot be refunded" "";
    Overflow Asker "An amount with too many digits."
        "a sum does not fit 64-bit nano-dollars (±9.2 billion dollars)" "";
    LedgerBusy Nobody "Many changes and calls at the same time on a slow disk."
        "4096 changes wait for the disk and 4096 may: try again in a moment" "";
    LedgerUnavailable Machine "A full disk, or a file of another user."
        "the ledger cannot be written: database or disk is full" "see that the disk has space, then try again";
    LedgerUndecided Machine "The disk became full during a change."
        "the journal failed: database or disk is full"
        "see that the disk has space; do not repeat it: it is in the audit log, and finished as soon as the ledger can be written";
    LedgerEmptied Machine "`ledger.sqlite` was deleted, or a backup without this file was restored."
        "the ledger is empty, but there are keys of projects that must have had accounts in it: default. Its file was removed or replaced"
        "stop, and put `ledger.sqlite` back; or, to continue with balances of zero, headrace ledger open-accounts";
    LedgerInconsistent Machine "A fault in the program, or a file that was edited by hand."
        "the ledger refused to break its own rule: debits and credits differ" "";
    NotRunning Machine "The command ran while the server was down."
        "no server runs on this data directory: it reads its configuration, and asks its upstreams, when it starts" "";
    NotListening Machine "The server runs without `admin.listen`."
        "no server listens for operators on this data directory"
        "headrace up, or headrace serve with --admin-listen 127.0.0.1:8081";
    Busy Nobody "A reload that is loading a model."
        "the configuration is being read again" "ask again when that is done";
    ConfigRefused Machine "A reload of a faulty file. A reload applies nothing of such a file."
        "the new configuration has 1 fault, and the former one stays in force, unchanged:\n  server.listen: `8080` is no address"
        "`headrace config check` shows every value and where it comes from";
    NoWords Machine "A model of an upstream that receives messages."
        "`gpt` is asked in messages: only its server has its template and tokenizer"
        "Give `path` beside `targets` in the configuration";
    NoFiles Asker "A model of an upstream."
        "`gpt` is served by another server: none of its files are here" "";
    Refused Asker "A prompt with messages that the model's template does not accept, or an id that is not a token of the model."
        "token 999999 is beyond the vocabulary of 32000" "";
    IdempotencyKeyReused Asker "A client that uses one key for several calls."
        "another call was made under this `Idempotency-Key`: a new call needs a new one" "" "idempotency-key";
    TooManyCalls Nobody "Many playgrounds at the same time, or long answers that no client reads to their end."
        "too many calls of the playground are being made: stop one, or wait until one is over" "";
    BegunBefore Nobody "A page that was reloaded more than an hour later, or after a restart."
        "a call was begun under this `Idempotency-Key` before, and its answer is not kept any longer: it is not made twice"
        "Requests shows its outcome. Sent again it is a new call, with a key of its own." "idempotency-key";
    Stopped Nobody "An operator pressed *Stop* in the playground, or left its page for minutes."
        "the call ended before its answer began: an operator stopped it, or its answer broke off"
        "send a new `Idempotency-Key` to ask once more; `GET /admin/v1/requests` shows what the ended call used";
    StoreFailed Machine "A full disk, or a file of another user."
        "the identity store failed while writing a key: database or disk is full"
        "see that the disk has space and the data directory is yours, then try again";
    WrongSecret Machine "A backup that was restored without its `secrets` folder."
        "the hash secret is not the one that the stored keys were hashed with: restore the secret file that belongs to this data directory" "";
    Randomness Machine "A container or a system without a source of random numbers."
        "the operating system gave no randomness for a new secret" "";
    Internal Machine "A fault in the program, or a server that was stopping."
        "this failed within the server" "";
    TooLong Asker "A program that writes to the control socket directly." "" "";
    NotUnderstood Machine "The program was updated, but the running server is still the former version." "" "";
    Version Machine "The program was updated, but the running server is still the former version." "" "";
}
