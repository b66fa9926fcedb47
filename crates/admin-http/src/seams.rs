//! What the program fills: what it knows that no command tells. Plain data; every call may block.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use headrace_admin::AdminError;
use headrace_domain::{NanoDollars, ProjectId, UnixNanos};
use headrace_identity::{OperatorRecord, ProjectRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::values::{Money, Time};

/// What the program knows. Calls may block; they are made off the event loop.
pub trait House: Send + Sync {
    /// The models served, by name.
    fn models(&self) -> Vec<ServedModel>;

    /// What the files of a served model hold, as `headrace models inspect --json` shows it.
    ///
    /// # Errors
    /// No such model is served, it has no files here, or they can no longer be read.
    fn inspect(&self, model: &str) -> Result<Value, AdminError>;

    /// Checkpoints that other programs have stored on this machine, by name.
    fn checkpoints(&self) -> Vec<StoredCheckpoint>;

    /// What one of them holds, as `headrace models inspect --json` shows it.
    ///
    /// # Errors
    /// There is none of that name, or it would be refused.
    fn inspect_checkpoint(&self, name: &str) -> Result<Value, AdminError>;

    /// Prices, by model and date.
    ///
    /// # Errors
    /// The configuration is being read.
    fn prices(&self) -> Result<Vec<ModelPrices>, AdminError>;

    /// Every setting that is in force, in the order of the reference. Settings name files with secrets, never what stands in them.
    ///
    /// # Errors
    /// The configuration is being read.
    fn settings(&self) -> Result<Vec<Setting>, AdminError>;

    /// Reads the whole ledger and checks every invariant.
    ///
    /// # Errors
    /// It cannot be read.
    fn verify(&self) -> Result<Verified, AdminError>;

    /// Holds open now, by id.
    fn holds(&self) -> Vec<Hold>;

    /// What calls brought and cost from one moment to another, told apart by what is named.
    ///
    /// # Errors
    /// Something is named that there is not, or traces cannot be read.
    fn margin(&self, by: &str, from: Option<UnixNanos>, to: Option<UnixNanos>) -> Result<Value, AdminError>;

    /// How models that get copies of calls compare with those that answered, over the last hours.
    ///
    /// # Errors
    /// Traces cannot be read.
    fn shadow(&self, hours: u32) -> Result<Value, AdminError>;
}

/// A model that is served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Model")]
pub struct ServedModel {
    /// Its name.
    pub name: String,
    /// In what terms it is spoken to: `tokens`, `texts` or `messages`.
    pub lane: &'static str,
    /// The most tokens of one sequence, prompt and answer together; `null`: not known here.
    pub context_window: Option<u32>,
    /// The length of an answer whose caller names none. `null` if the model writes no text.
    pub default_max_tokens: Option<u32>,
    /// What it takes: `text`, and `image`, `document`, `audio`, `video` where it does; `null`: its servers decide.
    pub input: Option<Vec<&'static str>>,
    /// Endpoints that it answers at, by their paths behind `/v1/`; empty: somebody else's server knows.
    pub endpoints: Vec<&'static str>,
    /// Other names that lead to it alone.
    pub aliases: Vec<String>,
    /// Why it cannot be called now; empty: it can.
    pub not_ready: Vec<String>,
}

/// A checkpoint that another program has stored on the server's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Checkpoint")]
pub struct StoredCheckpoint {
    /// What that program calls it; `headrace up --model NAME` serves it.
    pub name: String,
    /// Which program's: `Hugging Face`, `Ollama`, `LM Studio`, `llama.cpp`.
    pub program: &'static str,
    /// How its weights are written.
    pub format: &'static str,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Where it is.
    pub path: String,
    /// Why it cannot be served as it is; `null`: nothing is known against it.
    pub fault: Option<&'static str>,
}

/// Prices of a model from a day on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ModelPrices {
    /// The model.
    pub model: String,
    /// The first day on which they apply, UTC: `2026-11-05`; `null`: from the beginning.
    pub from: Option<String>,
    /// The class of service; `null`: the usual.
    pub tier: Option<String>,
    /// For calls of more prompt tokens than this; `null`: for every call.
    pub above_prompt_tokens: Option<u64>,
    /// Of a million prompt tokens that are computed.
    pub input: Option<Money>,
    /// Of a million prompt tokens from the prefix cache; `null`: as `input`.
    pub cached_input: Option<Money>,
    /// Of a million prompt tokens that are stored in the cache; `null`: as `input`.
    pub cache_write: Option<Money>,
    /// The same, kept for an hour; `null`: as `cache_write`.
    pub cache_write_1h: Option<Money>,
    /// Of a million generated tokens.
    pub output: Option<Money>,
    /// Of a million generated tokens of reasoning; `null`: as `output`.
    pub reasoning: Option<Money>,
}

/// A setting in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Setting {
    /// Its name in the file.
    pub name: &'static str,
    /// As it was written; `null`: it has no value.
    pub value: Option<String>,
    /// Where the value comes from: `default`, `file …`, `environment …`, `flag …`.
    pub origin: String,
    /// What it does.
    pub what: &'static str,
    /// Whether a reload puts a change in force.
    pub live: bool,
}

/// What a check of the ledger found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Verified {
    /// Whether every invariant holds.
    pub ok: bool,
    /// Rows of the journal.
    pub rows: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Snapshots that were compared.
    pub snapshots: u64,
    /// Faults in all.
    pub finding_count: u64,
    /// The first of them.
    pub findings: Vec<VerifyFinding>,
}

/// A fault in the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct VerifyFinding {
    /// The journal's row.
    pub row: u64,
    /// What is wrong.
    pub what: String,
}

/// Money that a call in flight holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Hold {
    /// The hold's id, which is the request's.
    pub id: String,
    /// Who pays.
    pub org: String,
    /// Whose budget.
    pub project: String,
    /// How much.
    pub amount: Money,
    /// When it would expire if nobody kept it.
    pub expires: Time,
}

impl Hold {
    /// Of a ledger's words.
    pub fn new(id: String, org: String, project: String, amount: NanoDollars, expires: UnixNanos) -> Self {
        Self { id, org, project, amount: amount.into(), expires: Time(expires) }
    }
}

/// What models see of prompts, and whether their files agree with each other, as JSON. Calls may block: some read files.
pub trait Prompts: Send + Sync {
    /// Exactly what a model sees of a call's body, token by token, and what that costs.
    ///
    /// # Errors
    /// There is no such model, its words are its server's, or such a call would be refused.
    fn render(&self, model: &str, ask: RenderAsk) -> Result<Value, AdminError>;

    /// A text's tokens, or what ids stand for.
    ///
    /// # Errors
    /// As of [`Prompts::render`]; there is no such id.
    fn tokenize(&self, model: &str, ask: TokenizeAsk) -> Result<Value, AdminError>;

    /// What is wrong with a model's files, with the evidence and the way out.
    ///
    /// # Errors
    /// There is no such model, its words are its server's, or its files cannot be read.
    fn doctor(&self, model: &str) -> Result<Value, AdminError>;
}

/// A prompt that is to be seen.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RenderAsk {
    /// The body of a call: `messages`, `tools` and whatever else it would have. Its model is the path's.
    pub body: Map<String, Value>,
    /// Whose body it is.
    #[serde(default)]
    pub dialect: AskedIn,
    /// Another body, whose prompt a cache is taken to hold.
    #[serde(default)]
    pub after: Option<Map<String, Value>>,
}

/// Whose body it is: OpenAI's chat completions, Anthropic's messages, OpenAI's responses.
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

/// A text that is to be seen in tokens, or ids that are to be seen as text: one of both.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenizeAsk {
    /// The text.
    #[serde(default)]
    pub text: Option<String>,
    /// The ids.
    #[serde(default)]
    pub ids: Option<Vec<u32>>,
    /// Control tokens that are spelt out in the text count as such.
    #[serde(default)]
    pub parse_special: bool,
    /// With what the tokenizer puts around a text by itself.
    #[serde(default)]
    pub add_special: bool,
}

/// What an operator may have the house do as a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
    /// `POST /tokenize`: free.
    Tokenize,
}

impl Ask {
    /// As the audit log names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Tokenize => "tokenize",
        }
    }
}

/// The pieces of an answer as they come; an error is its end before it is whole. Dropping them says that nobody reads on.
pub type Pieces = Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>;

/// The answer to a call.
pub struct Played {
    /// HTTP status.
    pub status: u16,
    /// Its type.
    pub content_type: &'static str,
    /// Further headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Its body.
    pub body: Pieces,
}

/// Makes calls of the house.
pub trait Playground: Send + Sync {
    /// Makes a call as a project, within its limits and for its money, in the name of an operator.
    fn ask(
        &self,
        ask: Ask,
        project: ProjectRecord,
        operator: &OperatorRecord,
        body: Bytes,
    ) -> Pin<Box<dyn Future<Output = Played> + Send>>;
}

/// Rows of calls as they end.
pub type Ended = Pin<Box<dyn Stream<Item = Value> + Send>>;

/// What is known of calls, as JSON. Calls may block, but for [`Calls::now`] and [`Calls::ended`].
pub trait Calls: Send + Sync {
    /// Calls that fit what is named, newest first: a page with `data` and `next`.
    ///
    /// # Errors
    /// Something is named that cannot be read, or traces cannot.
    fn search(
        &self,
        named: &[(&'static str, String)],
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, AdminError>;

    /// One call, by `req_…` or its answer's id; `None`: there is no such call, or no longer.
    ///
    /// # Errors
    /// Traces cannot be read.
    fn call(&self, id: &str, what: Look) -> Result<Option<Value>, AdminError>;

    /// How two calls differ; `None`: one of them is not there.
    ///
    /// # Errors
    /// Traces cannot be read.
    fn compare(&self, a: &str, b: &str) -> Result<Option<Value>, AdminError>;

    /// What was used, by what is named.
    ///
    /// # Errors
    /// As of [`Calls::search`].
    fn usage(&self, named: &[(&'static str, String)]) -> Result<Value, AdminError>;

    /// A project's month.
    ///
    /// # Errors
    /// The month is none, or the ledger cannot be read.
    fn statement(&self, project: &ProjectId, month: &str) -> Result<Value, AdminError>;

    /// How caches did, by what is named.
    ///
    /// # Errors
    /// As of [`Calls::search`].
    fn cache(&self, named: &[(&'static str, String)]) -> Result<Value, AdminError>;

    /// The house as it is now.
    fn now(&self) -> Value;

    /// The last minutes as lists of figures, oldest first.
    fn history(&self) -> Value;

    /// Calls as they end, from here on.
    fn ended(&self) -> Ended;
}

/// What is asked of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// Its trace.
    Trace,
    /// Where its time went, in words.
    Explain,
    /// What ran beside it.
    Beside,
    /// What it cost, term by term.
    Cost,
}
