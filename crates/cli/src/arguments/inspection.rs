//! Arguments of `render`, `tokenize` and `doctor`. Must not know what the commands do.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The model whose tokenizer and template are used.
#[derive(Debug, Args)]
pub(crate) struct OfModel {
    /// Name of a model in the configuration, a Hugging Face directory, or a GGUF file [default: the model that the body names,
    /// else the configuration's first model, else the built-in demo model]
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) model: Option<String>,
    /// Configuration of the server, with models and token prices
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The dialect of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BodyDialect {
    /// OpenAI's chat completions
    Chat,
    /// Anthropic's messages
    Messages,
    /// OpenAI's responses
    Responses,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace render \"What is a KV cache?\"          a question, as the model sees it\n  headrace render @body.json                      the body of a call, with its tools\n  headrace render @turn2.json --after @turn1.json  where the cache of the previous turn ends\n  headrace render - < body.json                   a body from a pipe\n\nIn a terminal the output is coloured; NO_COLOR turns colours off. ▏ marks the edges of cache blocks."
)]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    pub(crate) of: OfModel,
    /// User message. @FILE or - (standard input): a request body, a list of messages, or a text
    #[arg(value_name = "TEXT|@FILE|-")]
    pub(crate) prompt: String,
    /// System message before the user message
    #[arg(long, value_name = "TEXT", conflicts_with = "after")]
    pub(crate) system: Option<String>,
    /// Dialect of the body
    #[arg(long, value_name = "DIALECT", default_value = "chat")]
    pub(crate) body: BodyDialect,
    /// Another prompt, assumed to be in the prefix cache. The output shows how much of this prompt would be a cache hit
    #[arg(long, value_name = "TEXT|@FILE")]
    pub(crate) after: Option<String>,
    /// Mark every token boundary
    #[arg(long)]
    pub(crate) bounds: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace tokenize \"naïve café\"\n  headrace tokenize @prompt.txt --parse-special --json\n  echo hello | headrace tokenize - --model ~/models/Qwen3-0.6B"
)]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    pub(crate) of: OfModel,
    /// Text; @FILE or - for standard input
    #[arg(value_name = "TEXT|@FILE|-")]
    pub(crate) text: String,
    /// Treat spelt-out control tokens in the text as control tokens
    #[arg(long)]
    pub(crate) parse_special: bool,
    /// Add the tokens that the tokenizer puts around a text
    #[arg(long)]
    pub(crate) add_special: bool,
    /// The input is token ids, to be shown as text: 1,2,3
    #[arg(long, conflicts_with_all = ["parse_special", "add_special"])]
    pub(crate) ids: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace doctor                        the built-in demo model\n  headrace doctor ~/models/Qwen3-0.6B    a Hugging Face directory\n\nExit codes: 0 no faults (warnings and notes are printed), 1 faults (with --strict: or warnings), 2 no such model."
)]
pub(crate) struct DoctorArgs {
    /// A Hugging Face directory, a GGUF file, or the name of a model in the configuration [default: the configuration's first model, or the demo model]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Configuration of the server
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Count warnings as faults
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
