//! A model's words, read from its files: the tokenizer, the compiled template and how its replies are written.
//! Must not know where the files are, or what becomes of a prompt.

use std::fmt;
use std::sync::Arc;

use headrace_checkpoint::TokenizerConfig;
use headrace_prompt::{
    ChatTemplate, ReplyFamily, ReplyStyle, SpecialTokenTexts, TemplateError, TemplateLimits,
};
use headrace_tokenizer::{Tokenizer, TokenizerError};

/// Words to ids and back, as a checkpoint says.
pub struct Words {
    /// Text to ids and back. What replies are read by stands in its text.
    pub tokenizer: Arc<Tokenizer>,
    /// A conversation to a prompt; `None`: the model knows no conversations.
    pub template: Option<Arc<ChatTemplate>>,
    /// How the model writes its replies.
    pub replies: ReplyStyle,
}

/// Why a model's words cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordsError {
    /// Its tokenizer.
    Tokenizer(TokenizerError),
    /// Its chat template.
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

impl Words {
    /// Of a `tokenizer.json`, what stands beside it, and a chat template. `family` is how calls of tools are written, where the
    /// template is not to say so.
    ///
    /// # Errors
    /// [`WordsError`]: the tokenizer or the template cannot be used.
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
        // Some of a model's marks are special tokens, which have no text otherwise.
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
