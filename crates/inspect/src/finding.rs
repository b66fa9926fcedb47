//! The input and the results of a diagnosis, as plain data. Must not know the checks.

use headrace_checkpoint::{CheckpointError, GenerationDefaults, Rope, TokenizerConfig, Wording};
use headrace_prompt::ReplyFamily;
use serde::Serialize;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// Some calls will go wrong, or the files contradict each other.
    Warning,
    /// Answers will be wrong, or there will be no answers.
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

/// A problem, or a fact worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The code of the finding, which stays the same across versions of the program.
    pub code: &'static str,
    /// The severity.
    pub severity: Severity,
    /// A description of the problem.
    pub what: String,
    /// The evidence for it.
    pub evidence: String,
    /// The suggested remedy.
    pub way_out: String,
}

/// Facts from the files that are not problems.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Facts {
    /// The number of rows of the embedding.
    pub vocabulary: usize,
    /// One past the largest id with text.
    pub tokenizer_ids: usize,
    /// The longest context, in positions.
    pub context: Option<usize>,
    /// The notation of tool calls.
    pub family: &'static str,
    /// Whether reasoning is separated from the answer.
    pub thinks: bool,
    /// Whether offered tools appear in the prompt.
    pub shows_tools: bool,
    /// The tokens that end an answer.
    pub ends: Vec<String>,
    /// The text that opens an answer.
    pub opens: Option<String>,
    /// The tokens that the tokenizer itself adds before a text.
    pub before: Vec<String>,
}

/// The result of a diagnosis.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// Facts from the files.
    pub facts: Facts,
    /// The findings, the worst first.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Returns the highest severity. `None` if there are no findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|finding| finding.severity).max()
    }
}

/// The input of a diagnosis.
pub struct Examined<'a> {
    /// The number of rows of the embedding.
    pub vocab_size: usize,
    /// The longest context that `config.json` claims, in positions.
    pub max_positions: Option<usize>,
    /// The ids that end an answer.
    pub eos: &'a [u32],
    /// The sampling defaults that the model's makers recommend.
    pub generation: &'a GenerationDefaults,
    /// The bytes of `tokenizer.json`.
    pub tokenizer_json: &'a [u8],
    /// The configuration of the tokenizer.
    pub tokenizer_config: &'a TokenizerConfig,
    /// The chat template.
    pub template: Option<&'a str>,
    /// The notation of tool calls, if the configuration sets it.
    pub family: Option<ReplyFamily>,
    /// The encoding of positions, if it is known.
    pub rope: Option<&'a Rope>,
    /// Descriptions of what the files leave open.
    pub warnings: &'a [String],
    /// The reason why no engine here computes the model. `None` if one does.
    pub refused: Option<&'a CheckpointError>,
    /// Whether the model makes embeddings or scores of texts. Such a model has no template, and nothing ends its answers.
    pub is_encoder: bool,
}

impl<'a> Examined<'a> {
    /// Takes the tokenizer assets of a model and leaves out everything about its engine.
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
            is_encoder: false,
        }
    }
}
