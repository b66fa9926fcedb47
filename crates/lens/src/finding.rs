//! What is looked at, and what is found: plain data. Must not know what is looked for.

use headrace_checkpoint::{CheckpointError, GenerationDefaults, Rope, TokenizerConfig, Wording};
use headrace_prompt::ReplyFamily;
use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// Some calls will go wrong, or the files contradict each other.
    Warning,
    /// Answers will be wrong, or there will be none.
    Fault,
}

impl Severity {
    /// The name in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "fault",
        }
    }
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name, which stays the same over versions of the program.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub what: String,
    /// What shows it.
    pub evidence: String,
    /// What to do.
    pub way_out: String,
}

/// What the files say, where nothing is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Facts {
    /// Rows of the embedding.
    pub vocabulary: usize,
    /// One past the largest id that has text.
    pub tokenizer_ids: usize,
    /// Longest context, in positions.
    pub context: Option<usize>,
    /// How calls of tools are written.
    pub family: &'static str,
    /// Whether a thought is told from what is said.
    pub thinks: bool,
    /// Whether tools that are offered stand in the prompt.
    pub shows_tools: bool,
    /// What ends an answer.
    pub ends: Vec<String>,
    /// What opens one.
    pub opens: Option<String>,
    /// What the tokenizer puts before a text by itself.
    pub before: Vec<String>,
}

/// What was found of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// What its files say.
    pub facts: Facts,
    /// What is wrong, the worst first.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// How bad the worst of it is; `None`: nothing was found.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// What is looked at.
pub struct Examined<'a> {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest context that `config.json` claims.
    pub max_positions: Option<usize>,
    /// Ids that end an answer.
    pub eos: &'a [u32],
    /// What the makers recommend.
    pub generation: &'a GenerationDefaults,
    /// The `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// What stands beside it.
    pub tokenizer_config: &'a TokenizerConfig,
    /// The chat template.
    pub template: Option<&'a str>,
    /// How calls are written, where the configuration says so.
    pub family: Option<ReplyFamily>,
    /// How positions are told, where it is known.
    pub rope: Option<&'a Rope>,
    /// What the files leave open, in words.
    pub warnings: &'a [String],
    /// Why no engine here computes it, where none does.
    pub refused: Option<&'a CheckpointError>,
}

impl<'a> Examined<'a> {
    /// The words of a model, and nothing of who computes it.
    pub fn of(wording: &'a Wording) -> Self {
        Self {
            vocab_size: wording.vocab_size(),
            max_positions: wording.max_positions(),
            eos: wording.eos(),
            generation: wording.generation(),
            tokenizer_json: wording.tokenizer_json(),
            tokenizer_config: wording.tokenizer_config(),
            template: wording.chat_template(),
            family: None,
            rope: None,
            warnings: wording.warnings(),
            refused: None,
        }
    }
}
