//! Converts the tokenizer in GGUF metadata to a `tokenizer.json` that gives the same ids, and to the content of a
//! `tokenizer_config.json`. Must not know how text becomes ids.

mod bpe;
mod gemma4;
mod pre;
mod scored;
mod vocabulary;

use crate::error::CheckpointError;
use crate::limits::{MAX_CHAT_TEMPLATE_BYTES, MAX_CHAT_TEMPLATES};
use crate::tokenizer_config::{ChatTemplates, TokenizerConfig};

use super::meta::Meta;
use super::value::Value;
pub use pre::pre_tokenizers;
use vocabulary::Vocabulary;

const MODEL: &str = "tokenizer.ggml.model";
const SUPPORTED: &str = "supported are \"gpt2\", \"llama\" and \"gemma4\"";
const TEMPLATE: &str = "tokenizer.chat_template";

/// The tokenizer assets of a GGUF file.
pub(super) struct Words {
    pub(super) json: Vec<u8>,
    pub(super) config: TokenizerConfig,
    pub(super) templates: ChatTemplates,
    pub(super) bos: Option<u32>,
    pub(super) eos: Vec<u32>,
    pub(super) warnings: Vec<String>,
}

/// Reads the tokenizer of a model whose embedding has `vocab_size` rows.
pub(super) fn read(meta: Meta<'_>, vocab_size: usize) -> Result<Words, CheckpointError> {
    let mut vocabulary = Vocabulary::read(meta, vocab_size)?;
    let model = meta.text(MODEL)?.ok_or_else(|| meta.missing(MODEL))?;
    let parts = match model {
        "gpt2" => bpe::parts(&vocabulary)?,
        "llama" => scored::parts(&vocabulary)?,
        gemma4::MODEL => gemma4::parts(&mut vocabulary)?,
        other => {
            let found = Value::Text(other.to_owned());
            return Err(meta.unsupported(MODEL, &found, SUPPORTED));
        }
    };
    let id = |name: &str| vocabulary.id(&format!("tokenizer.ggml.{name}_token_id"));
    let (bos, eos, pad, unknown) = (id("bos")?, id("eos")?, id("padding")?, id("unknown")?);
    let text = |id: Option<u32>| id.and_then(|id| vocabulary.text(id)).map(str::to_owned);
    let flag = |name: &str| meta.flag(&format!("tokenizer.ggml.add_{name}_token"));
    // Files of early converters say that Gemma 4 has no beginning token. llama.cpp adds it nevertheless.
    let adds_bos = model == gemma4::MODEL || flag("bos")?.unwrap_or(parts.adds_bos);
    let config = TokenizerConfig {
        bos_token: text(bos),
        eos_token: text(eos),
        pad_token: text(pad),
        unk_token: text(unknown),
        additional_special_tokens: Vec::new(),
        add_bos_token: Some(adds_bos),
        add_eos_token: Some(flag("eos")?.unwrap_or(false)),
        model_max_length: None,
        clean_up_tokenization_spaces: None,
        tokenizer_class: Some(parts.class.to_owned()),
    };
    let ends = vocabulary.ends([eos, id("eot")?, id("eom")?]);
    let warnings = parts.warning.iter().cloned().collect();
    let json = vocabulary.json(parts, [bos, eos])?;
    Ok(Words { json, config, templates: templates(meta)?, bos, eos: ends, warnings })
}

fn templates(meta: Meta<'_>) -> Result<ChatTemplates, CheckpointError> {
    let bounded = |key: &str| -> Result<Option<String>, CheckpointError> {
        let Some(text) = meta.text(key)? else { return Ok(None) };
        match u64::try_from(text.len()).is_ok_and(|bytes| bytes <= MAX_CHAT_TEMPLATE_BYTES) {
            true => Ok(Some(text.to_owned())),
            false => {
                let problem = format!("is {} bytes long, the most is {MAX_CHAT_TEMPLATE_BYTES}", text.len());
                Err(meta.problem(key, problem))
            }
        }
    };
    let mut templates = ChatTemplates { default: bounded(TEMPLATE)?, ..ChatTemplates::default() };
    for key in meta.keys() {
        let Some(name) = key.strip_prefix(TEMPLATE).and_then(|rest| rest.strip_prefix('.')) else { continue };
        if templates.named.len() == MAX_CHAT_TEMPLATES {
            let problem = format!("there are more than {MAX_CHAT_TEMPLATES} chat templates");
            return Err(meta.problem(key, problem));
        }
        if let Some(text) = bounded(key)? {
            templates.named.insert(name.to_owned(), text);
        }
    }
    Ok(templates)
}
