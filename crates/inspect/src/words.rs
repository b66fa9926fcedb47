//! Reads a model's tokenizer assets from its files: the tokenizer, the compiled template and the style of its replies.
//! Must not know where the files are or what a prompt is used for.

use std::fmt;
use std::sync::Arc;

use headrace_checkpoint::{ModelRefusal, TokenizerConfig};
use headrace_prompt::{
    ChatTemplate, ReplyFamily, ReplyStyle, SpecialTokenTexts, TemplateError, TemplateLimits,
};
use headrace_tokenizer::{Tokenizer, TokenizerError};

/// The tokenizer assets of a checkpoint.
pub struct Words {
    /// Converts text to ids and back. Decoded text contains the marks that replies are parsed by.
    pub tokenizer: Arc<Tokenizer>,
    /// Renders a conversation as a prompt. `None` if the model has no chat template.
    pub template: Option<Arc<ChatTemplate>>,
    /// The style in which the model writes its replies.
    pub replies: ReplyStyle,
}

/// The reason why the tokenizer assets cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordsError {
    /// The tokenizer cannot be used.
    Tokenizer(TokenizerError),
    /// The chat template cannot be used.
    Template(TemplateError),
}

impl fmt::Display for WordsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokenizer(error) => error.fmt(f),
            Self::Template(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WordsError {}

impl From<&WordsError> for ModelRefusal {
    fn from(error: &WordsError) -> Self {
        let (code, feature, way_out) = match error {
            WordsError::Tokenizer(_) => (
                "tokenizer_unusable",
                "tokenizer.json",
                "download tokenizer.json again, or make it with `AutoTokenizer.from_pretrained(…).save_pretrained(…)`",
            ),
            WordsError::Template(_) => (
                "template_unusable",
                "chat_template.jinja",
                "mend the line that is named, or take chat_template.jinja from the model's repository",
            ),
        };
        let message = error.to_string();
        Self {
            code,
            feature: feature.into(),
            found: message.as_str().into(),
            message,
            nearest: None,
            way_out: way_out.to_owned(),
        }
    }
}

/// Returns the notations of tool calls: the name in the configuration, and well-known models that write it.
pub fn call_notations() -> impl Iterator<Item = (&'static str, &'static str)> {
    ReplyFamily::ALL.into_iter().map(|family| (family.name(), family.models()))
}

impl Words {
    /// Reads a `tokenizer.json`, its configuration, and a chat template. `family` is the notation of tool calls. If it
    /// is `None`, the template determines the notation.
    ///
    /// # Errors
    /// [`WordsError`] if the tokenizer or the template cannot be used.
    pub fn read(
        json: &[u8],
        config: &TokenizerConfig,
        template: Option<&str>,
        family: Option<ReplyFamily>,
    ) -> Result<Self, WordsError> {
        let tokenizer = Tokenizer::new(json, config).map_err(WordsError::Tokenizer)?;
        let Some(source) = template else {
            return Ok(Self { tokenizer: Arc::new(tokenizer), template: None, replies: ReplyStyle::PLAIN });
        };
        let detected = ReplyStyle::detect(source);
        let replies = ReplyStyle { family: family.unwrap_or(detected.family), ..detected };
        // Some of a model's marks are special tokens, which decoded text would otherwise omit.
        let tokenizer = Arc::new(tokenizer.showing(|token| replies.reads(token)));
        let tokens = SpecialTokenTexts::new(
            &tokenizer,
            config.bos_token.clone(),
            config.eos_token.clone(),
            config.pad_token.clone(),
            config.unk_token.clone(),
        );
        let template = ChatTemplate::compile(source, &tokens, TemplateLimits::default());
        let template = template.map_err(WordsError::Template)?;
        Ok(Self { tokenizer, template: Some(Arc::new(template)), replies })
    }
}
