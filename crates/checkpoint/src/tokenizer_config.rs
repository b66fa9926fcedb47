//! `tokenizer_config.json` and `chat_template.jinja` → special tokens, switches and chat templates as text. Must not
//! know how text becomes ids or how a template is rendered.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::error::{CheckpointError, shown};
use crate::fields::Fields;
use crate::limits::{MAX_CHAT_TEMPLATE_BYTES, MAX_CHAT_TEMPLATES};

/// File name of the tokenizer's configuration.
pub(crate) const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";
/// File name of the chat template. It takes precedence over the template in [`TOKENIZER_CONFIG_FILE`].
pub(crate) const CHAT_TEMPLATE_FILE: &str = "chat_template.jinja";

/// transformers writes 10^30 for "no limit". No value at or above this constant is a length.
const NO_LENGTH_LIMIT: f64 = 1e15;

/// The tokenizer's configuration, without the vocabulary. A field is `None` if the file does not have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenizerConfig {
    /// Beginning-of-sequence token, as text.
    pub bos_token: Option<String>,
    /// End-of-sequence token, as text.
    pub eos_token: Option<String>,
    /// Padding token, as text.
    pub pad_token: Option<String>,
    /// Unknown token, as text.
    pub unk_token: Option<String>,
    /// Further special tokens, as text.
    pub additional_special_tokens: Vec<String>,
    /// Whether encoding puts `bos_token` first.
    pub add_bos_token: Option<bool>,
    /// Whether encoding puts `eos_token` last.
    pub add_eos_token: Option<bool>,
    /// Longest input, in tokens. Also `None` for transformers' 10^30.
    pub model_max_length: Option<usize>,
    /// Whether decoding removes spaces before punctuation, an old habit for English text.
    pub clean_up_tokenization_spaces: Option<bool>,
    /// Name of the tokenizer's class in transformers.
    pub tokenizer_class: Option<String>,
}

/// Chat templates as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ChatTemplates {
    pub(crate) default: Option<String>,
    pub(crate) named: BTreeMap<String, String>,
}

impl TokenizerConfig {
    pub(crate) fn read(members: &Map<String, Value>) -> Result<Self, CheckpointError> {
        let fields = Fields::new(TOKENIZER_CONFIG_FILE, members);
        Ok(Self {
            bos_token: token(&fields, "bos_token")?,
            eos_token: token(&fields, "eos_token")?,
            pad_token: token(&fields, "pad_token")?,
            unk_token: token(&fields, "unk_token")?,
            additional_special_tokens: additional(&fields)?,
            add_bos_token: fields.flag("add_bos_token")?,
            add_eos_token: fields.flag("add_eos_token")?,
            model_max_length: model_max_length(&fields)?,
            clean_up_tokenization_spaces: fields.flag("clean_up_tokenization_spaces")?,
            tokenizer_class: fields.text("tokenizer_class")?.map(str::to_owned),
        })
    }
}

impl ChatTemplates {
    /// Reads the templates of `tokenizer_config.json`: one string, or a list of `{"name": …, "template": …}`.
    pub(crate) fn read(members: &Map<String, Value>) -> Result<Self, CheckpointError> {
        const EXPECTED: &str = "a string or a list of {name, template}";
        let fields = Fields::new(TOKENIZER_CONFIG_FILE, members);
        let mut templates = Self::default();
        let items = match fields.get("chat_template") {
            None => return Ok(templates),
            Some(Value::String(text)) => {
                templates.default = Some(bounded(&fields, text)?);
                return Ok(templates);
            }
            Some(Value::Array(items)) if items.len() <= MAX_CHAT_TEMPLATES => items,
            Some(other) => return Err(fields.wrong("chat_template", other, EXPECTED)),
        };
        for item in items {
            let part = |key: &str| item.get(key).and_then(Value::as_str);
            let (Some(name), Some(text)) = (part("name"), part("template")) else {
                return Err(fields.wrong("chat_template", item, EXPECTED));
            };
            if templates.named.insert(name.to_owned(), bounded(&fields, text)?).is_some() {
                let problem = format!("names \"{}\" twice", shown(name));
                return Err(fields.problem("chat_template", problem));
            }
        }
        templates.default = templates.named.get("default").cloned();
        Ok(templates)
    }

    pub(crate) fn named(&self, name: &str) -> Option<&str> {
        match name {
            "default" => self.default.as_deref(),
            other => self.named.get(other).map(String::as_str),
        }
    }
}

fn bounded(fields: &Fields<'_>, template: &str) -> Result<String, CheckpointError> {
    if u64::try_from(template.len()).is_ok_and(|bytes| bytes <= MAX_CHAT_TEMPLATE_BYTES) {
        return Ok(template.to_owned());
    }
    let problem = format!("is {} bytes long, the most is {MAX_CHAT_TEMPLATE_BYTES}", template.len());
    Err(fields.problem("chat_template", problem))
}

/// Reads a token, written as `"text"` or as `{"content": "text", …}`.
fn token(fields: &Fields<'_>, field: &str) -> Result<Option<String>, CheckpointError> {
    let Some(value) = fields.get(field) else { return Ok(None) };
    match token_text(value) {
        Some(text) => Ok(Some(text.to_owned())),
        None => Err(fields.wrong(field, value, "a string or {\"content\": string}")),
    }
}

fn additional(fields: &Fields<'_>) -> Result<Vec<String>, CheckpointError> {
    const FIELD: &str = "additional_special_tokens";
    let Some(value) = fields.get(FIELD) else { return Ok(Vec::new()) };
    let wrong = || fields.wrong(FIELD, value, "a list of tokens");
    let items = value.as_array().ok_or_else(wrong)?;
    items.iter().map(|item| token_text(item).map(str::to_owned).ok_or_else(wrong)).collect()
}

fn token_text(value: &Value) -> Option<&str> {
    value.as_str().or_else(|| value.get("content").and_then(Value::as_str))
}

fn model_max_length(fields: &Fields<'_>) -> Result<Option<usize>, CheckpointError> {
    const FIELD: &str = "model_max_length";
    match fields.get(FIELD) {
        Some(value) if value.as_f64().is_some_and(|n| n >= NO_LENGTH_LIMIT) => Ok(None),
        _ => fields.count(FIELD, 1..=usize::MAX),
    }
}
