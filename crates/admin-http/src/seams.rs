//! Traits that the program implements, and the plain data that they return. The routes get everything through them that
//! admin commands do not return.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use headrace_admin::{AdminError, ForgottenStore};
use headrace_domain::{NanoDollars, OrgId, ProjectId, UnixNanos};
use headrace_identity::{OperatorRecord, ProjectRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::values::{Money, Time};

/// Facts that only the program has. Methods may block, so they run off the event loop.
pub trait ServerAdmin: Send + Sync {
    /// The served models, by name.
    fn models(&self) -> Vec<ServedModel>;

    /// The contents of a served model's files, as `headrace models inspect --json` shows them.
    ///
    /// # Errors
    /// If no such model is served, if it has no files on this machine, or if its files cannot be read.
    fn inspect(&self, model: &str) -> Result<Value, AdminError>;

    /// The checkpoints that other programs stored on this machine, by name.
    fn checkpoints(&self) -> Vec<StoredCheckpoint>;

    /// The contents of such a checkpoint, as `headrace models inspect --json` shows them.
    ///
    /// # Errors
    /// If there is no checkpoint of that name, or Headrace would refuse it.
    fn inspect_checkpoint(&self, name: &str) -> Result<Value, AdminError>;

    /// The prices, by model and date.
    ///
    /// # Errors
    /// If the configuration is being read.
    fn prices(&self) -> Result<Vec<ModelPrices>, AdminError>;

    /// Every setting in force, in the order of the reference. Settings name files with secrets, never their contents.
    ///
    /// # Errors
    /// If the configuration is being read.
    fn settings(&self) -> Result<Vec<SettingInForce>, AdminError>;

    /// Reads the whole ledger and checks every invariant.
    ///
    /// # Errors
    /// If the ledger cannot be read.
    fn verify(&self) -> Result<LedgerCheck, AdminError>;

    /// The open holds, by id.
    fn holds(&self) -> Vec<OpenHold>;

    /// Revenue and cost of calls from `from` until before `to`, grouped by the comma-separated dimensions in `by`.
    ///
    /// # Errors
    /// If `by` names an unknown dimension, if `from` is not before `to`, or if traces cannot be read.
    fn margin(&self, by: &str, from: Option<UnixNanos>, to: Option<UnixNanos>) -> Result<Value, AdminError>;

    /// Compares shadow models with the models that answered the original calls, over the last `hours` hours.
    ///
    /// # Errors
    /// If traces cannot be read.
    fn shadow(&self, hours: u32) -> Result<Value, AdminError>;
}

/// A model that is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Model")]
pub struct ServedModel {
    /// The model's name.
    pub name: String,
    /// The kind of the model's backend: `tokens`, `texts` or `messages`.
    pub lane: &'static str,
    /// The maximum number of tokens of prompt and answer together. `null` if it is not known here.
    pub context_window: Option<u32>,
    /// The maximum length of an answer, in tokens, if the client sets none. `null` if the model writes no text.
    pub default_max_tokens: Option<u32>,
    /// The kinds of input: `text`, and `image`, `document`, `audio`, `video` if supported. `null` if its servers
    /// decide.
    pub input: Option<Vec<&'static str>>,
    /// The endpoints that accept this model, by their paths after `/v1/`. Empty if another server decides.
    pub endpoints: Vec<&'static str>,
    /// Other names that lead to this model only.
    pub aliases: Vec<String>,
    /// Why the model cannot be called now. Empty if it can.
    pub not_ready: Vec<String>,
}

/// A checkpoint that another program has stored on the server's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Checkpoint")]
pub struct StoredCheckpoint {
    /// The program's name for it. `headrace up --model NAME` serves it.
    pub name: String,
    /// The program: `Hugging Face`, `Ollama`, `LM Studio` or `llama.cpp`.
    pub program: &'static str,
    /// The format of the weights.
    pub format: &'static str,
    /// The size of the weights, in bytes.
    pub weight_bytes: u64,
    /// The path of the checkpoint.
    pub path: String,
    /// Why it cannot be served as it is. `null` if no fault is known.
    pub fault: Option<&'static str>,
}

/// Prices of a model, valid from a date.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelPrices {
    /// The model.
    pub model: String,
    /// The first day on which they apply, in UTC, such as `2026-11-05`. `null` if they apply from the beginning.
    pub from: Option<String>,
    /// The service tier. `null` for the standard tier.
    pub tier: Option<String>,
    /// The tier whose holders have these prices. `null` for all other callers.
    pub holder_tier: Option<String>,
    /// The prices apply to calls with more prompt tokens than this. `null` if they apply to every call.
    pub above_prompt_tokens: Option<u64>,
    /// Price of a million computed prompt tokens.
    pub input: Option<Money>,
    /// Price of a million prompt tokens from the prefix cache. `null` if it equals `input`.
    pub cached_input: Option<Money>,
    /// Price of a million prompt tokens that are written to the cache. `null` if it equals `input`.
    pub cache_write: Option<Money>,
    /// Price of a million prompt tokens that are cached for an hour. `null` if it equals `cache_write`.
    pub cache_write_1h: Option<Money>,
    /// Price of a million generated tokens.
    pub output: Option<Money>,
    /// Price of a million generated reasoning tokens. `null` if it equals `output`.
    pub reasoning: Option<Money>,
}

/// A setting in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SettingInForce {
    /// The setting's name in the configuration file.
    pub name: &'static str,
    /// The value as it was written. `null` if it has none.
    pub value: Option<String>,
    /// The origin of the value: `default`, `file …`, `environment …` or `flag …`.
    pub origin: String,
    /// What the setting does.
    pub what: &'static str,
    /// Whether a reload applies a change.
    pub live: bool,
}

/// The result of a check of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LedgerCheck {
    /// Whether every invariant holds.
    pub ok: bool,
    /// Rows of the journal.
    pub rows: u64,
    /// Transactions in these rows.
    pub transactions: u64,
    /// Snapshots that were compared.
    pub snapshots: u64,
    /// The number of all faults.
    pub finding_count: u64,
    /// The first faults.
    pub findings: Vec<VerifyFinding>,
}

/// A fault in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct VerifyFinding {
    /// The number of the journal's row.
    pub row: u64,
    /// What is wrong.
    pub what: String,
}

/// Money that a call in flight holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OpenHold {
    /// The hold's id, which is the request's.
    pub id: String,
    /// The organisation that pays.
    pub org: String,
    /// The project whose budget is charged.
    pub project: String,
    /// The amount held.
    pub amount: Money,
    /// When the hold expires if it is not kept alive.
    pub expires: Time,
}

impl OpenHold {
    /// Builds the view from the ledger's values.
    pub fn new(id: String, org: String, project: String, amount: NanoDollars, expires: UnixNanos) -> Self {
        Self { id, org, project, amount: amount.into(), expires: Time(expires) }
    }
}

/// Inspects prompts and model files, and returns JSON. Methods may block, because some of them read files.
pub trait PromptInspector: Send + Sync {
    /// The prompt that the model gets for the body of a call, token by token, and its price.
    ///
    /// # Errors
    /// If there is no such model, if only its server has its tokenizer, or if such a call would be refused.
    fn render(&self, model: &str, ask: RenderAsk) -> Result<Value, AdminError>;

    /// The tokens of a text, or the text of token ids.
    ///
    /// # Errors
    /// As for [`PromptInspector::render`], or if an id does not exist.
    fn tokenize(&self, model: &str, ask: TokenizeAsk) -> Result<Value, AdminError>;

    /// The faults of a model's files, each with its evidence and a remedy.
    ///
    /// # Errors
    /// If there is no such model, if only its server has its tokenizer, or if its files cannot be read.
    fn doctor(&self, model: &str) -> Result<Value, AdminError>;
}

/// A request to show a prompt.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenderAsk {
    /// The body of a call: `messages`, `tools` and other parameters. The model is the one in the path.
    pub body: Map<String, Value>,
    /// The dialect of the body.
    #[serde(default)]
    pub dialect: AskedIn,
    /// Another body. Its prompt is assumed to be in the cache.
    #[serde(default)]
    pub after: Option<Map<String, Value>>,
}

/// The dialect of a body: OpenAI chat completions, Anthropic messages, or OpenAI responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AskedIn {
    /// `POST /v1/chat/completions`
    #[default]
    Chat,
    /// `POST /v1/messages`
    Messages,
    /// `POST /v1/responses`
    Responses,
}

/// A text to tokenize, or token ids to turn into text. Exactly one of the two.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeAsk {
    /// The text to tokenize.
    #[serde(default)]
    pub text: Option<String>,
    /// The token ids.
    #[serde(default)]
    pub ids: Option<Vec<u32>>,
    /// Whether control tokens that are written out in the text are parsed as control tokens.
    #[serde(default)]
    pub parse_special: bool,
    /// Whether to add the tokens that the tokenizer puts around a text.
    #[serde(default)]
    pub add_special: bool,
}

/// A playground request that an operator makes as a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlaygroundEndpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
    /// `POST /tokenize`. It is free.
    Tokenize,
}

impl PlaygroundEndpoint {
    /// The name in the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Tokenize => "tokenize",
        }
    }
}

/// The body of an answer, in pieces. An error means that the answer ended early. Dropping the stream means that the
/// client reads no further.
pub type Pieces = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// The response to a playground call.
pub struct PlaygroundAnswer {
    /// HTTP status.
    pub status: u16,
    /// The content type.
    pub content_type: &'static str,
    /// Further headers. Names are in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Pieces,
}

/// Makes the calls of the playground.
pub trait PlaygroundCaller: Send + Sync {
    /// Makes a call as `project`, within the project's limits, at its expense, and in the operator's name.
    fn ask(
        &self,
        ask: PlaygroundEndpoint,
        project: ProjectRecord,
        operator: &OperatorRecord,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = PlaygroundAnswer> + Send>>;
}

/// A stream of rows, one for each call that ends.
pub type Ended = Pin<Box<dyn Stream<Item = Value> + Send>>;

/// Traces, usage and live figures of calls, as JSON. Methods may block, except [`CallRecords::now`], [`CallRecords::history`] and
/// [`CallRecords::ended`].
pub trait CallRecords: Send + Sync {
    /// Searches calls by the filters in `named`, newest first. Returns a page with `data` and `next`.
    ///
    /// # Errors
    /// If the value of a filter is invalid, or traces cannot be read.
    fn search(
        &self,
        named: &[(&'static str, String)],
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, AdminError>;

    /// One call, by its `req_…` id or the id of its answer. `None` if there is no such call, or its trace is no longer
    /// kept.
    ///
    /// # Errors
    /// If traces cannot be read.
    fn call(&self, id: &str, what: CallView) -> Result<Option<FoundCall>, AdminError>;

    /// The differences between two calls, by their records ([`CallView::Record`]), which may be those of other gateways.
    ///
    /// # Errors
    /// If a record cannot be read, for example that of a newer program.
    fn compare(&self, a: &Value, b: &Value) -> Result<Value, AdminError>;

    /// Usage, by the filters and groups in `named`. Adds `others`: the usage of other gateways over the same ledger, by the
    /// names of the gateways. What they answered to the same question without others.
    ///
    /// # Errors
    /// As for [`CallRecords::search`].
    fn usage(
        &self,
        named: &[(&'static str, String)],
        others: &[(String, Value)],
    ) -> Result<UsageView, AdminError>;

    /// A project's statement for a month.
    ///
    /// # Errors
    /// If `month` is not a valid month, or the ledger cannot be read.
    fn statement(&self, project: &ProjectId, month: &str) -> Result<Value, AdminError>;

    /// Cache hits and misses, by the filters and groups in `named`.
    ///
    /// # Errors
    /// As for [`CallRecords::search`].
    fn cache(&self, named: &[(&'static str, String)]) -> Result<Value, AdminError>;

    /// Removes a user from the stores that belong to this server alone: in one project, or everywhere. Returns what was
    /// done in each.
    fn forget(&self, user: &str, project: Option<&ProjectId>) -> Vec<ForgottenStore> {
        let _ = (user, project);
        Vec::new()
    }

    /// The current state of the server.
    fn now(&self) -> Value;

    /// Samples of the last minutes as lists of numbers, oldest first.
    fn history(&self) -> Value;

    /// The calls that end from now on.
    fn ended(&self) -> Ended;
}

/// Usage, and the gateways whose usage is not in it.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageView {
    /// The usage, as JSON.
    pub usage: Value,
    /// The names of the gateways whose answers could not be read, and why.
    pub unread: Vec<(String, String)>,
}

/// A view of a call, and the call that it is of. The name by which a call is found may fit several calls: a caller chooses
/// its W3C trace id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundCall {
    /// The call's own id: `req_…`.
    pub id: String,
    /// The organisation of the call. `None` for a call without a known caller.
    pub org: Option<OrgId>,
    /// The view.
    pub view: Value,
}

/// A view of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallView {
    /// The trace.
    Trace,
    /// An explanation in words of where its time went.
    Explain,
    /// Other calls that ran at the same time.
    Beside,
    /// Its cost, term by term.
    Cost,
    /// Its signed receipt. `None` if the ledger has not settled the call.
    Receipt,
    /// Its recorded request and answer.
    Content,
    /// The stored record, for another gateway.
    Record,
}

impl CallView {
    pub(crate) const ALL: [Self; 7] =
        [Self::Trace, Self::Explain, Self::Beside, Self::Cost, Self::Receipt, Self::Content, Self::Record];

    /// The name between gateways.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Explain => "explain",
            Self::Beside => "beside",
            Self::Cost => "cost",
            Self::Receipt => "receipt",
            Self::Content => "content",
            Self::Record => "record",
        }
    }
}
