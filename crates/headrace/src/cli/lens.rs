//! Arguments of `render`, `tokenize` and `doctor`. Must not know what the commands do.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The model whose tokenizer and template are used.
#[derive(Debug, Args)]
pub(crate) struct OfModel {
    /// A model of the configuration by its name, or a Hugging Face directory or a GGUF file [default: the one that the body
    /// names, or the first of the configuration: the built-in demo model]
    #[arg(long, value_name = "NAME|PATH")]
    pub(crate) model: Option<String>,
    /// The server's configuration: its models, and what their tokens cost
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
    after_help = "Examples:\n  headrace render \"What is a KV cache?\"          a question, as the model sees it\n  headrace render @body.json                      the body of a call, with its tools\n  headrace render @turn2.json --after @turn1.json  where the cache of the turn before ends\n  headrace render - < body.json                   a body from a pipe\n\nColours are for a terminal; NO_COLOR switches them off. ▏ stands at the edges of cache blocks."
)]
pub(crate) struct RenderArgs {
    #[command(flatten)]
    pub(crate) of: OfModel,
    /// What the user says; @FILE or - (standard input) for the body of a call, its list of messages, or a text
    #[arg(value_name = "TEXT|@FILE|-")]
    pub(crate) prompt: String,
    /// Instructions before it
    #[arg(long, value_name = "TEXT", conflicts_with = "after")]
    pub(crate) system: Option<String>,
    /// Whose body it is
    #[arg(long, value_name = "DIALECT", default_value = "chat")]
    pub(crate) body: BodyDialect,
    /// Another prompt, which a cache is taken to hold: shows how much of this one it gives
    #[arg(long, value_name = "TEXT|@FILE")]
    pub(crate) after: Option<String>,
    /// A mark between any two tokens
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
    /// The text; @FILE or - for standard input
    #[arg(value_name = "TEXT|@FILE|-")]
    pub(crate) text: String,
    /// Control tokens that are spelt out in it count as such
    #[arg(long)]
    pub(crate) parse_special: bool,
    /// With what the tokenizer puts around a text by itself
    #[arg(long)]
    pub(crate) add_special: bool,
    /// Token ids, to be shown as text: 1,2,3
    #[arg(long, conflicts_with_all = ["parse_special", "add_special"])]
    pub(crate) ids: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  headrace doctor                        the built-in demo model\n  headrace doctor ~/models/Qwen3-0.6B    a Hugging Face directory\n\nExit codes: 0 no faults (warnings and notes are printed), 1 faults (with --strict: or warnings), 2 there is no such model."
)]
pub(crate) struct DoctorArgs {
    /// A Hugging Face directory, a GGUF file, or a model of the configuration by its name [default: its first: the demo model]
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// The server's configuration
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Warnings count as faults
    #[arg(long)]
    pub(crate) strict: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
