//! Exports a checkpoint's tokenizer assets as files that [`super::Wording`] reads, for processes that do not have the
//! weights. Must not know where the files go.

use serde_json::{Map, Value, json};

use crate::checkpoint::Checkpoint;
use crate::config_file::CONFIG_FILE;
use crate::directory::TOKENIZER_FILE;
use crate::generation::{GENERATION_FILE, GenerationDefaults};
use crate::tokenizer_config::{CHAT_TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TokenizerConfig};

impl Checkpoint {
    /// Returns the tokenizer assets as files: name and contents. [`crate::Wording::from_files`] reads from them what it
    /// would read from this checkpoint. Named templates other than the default are left out.
    pub fn wording_files(&self) -> Vec<(String, Vec<u8>)> {
        let config = self.config();
        let sizes = json!({
            "vocab_size": config.vocab_size,
            "max_position_embeddings": config.max_positions,
            "eos_token_id": config.eos,
        });
        let mut files = vec![
            (CONFIG_FILE, sizes.to_string().into_bytes()),
            (GENERATION_FILE, generation(self.generation()).to_string().into_bytes()),
            (TOKENIZER_FILE, self.tokenizer_json().to_vec()),
            (TOKENIZER_CONFIG_FILE, special(self.tokenizer_config()).to_string().into_bytes()),
        ];
        files.extend(self.chat_template().map(|template| (CHAT_TEMPLATE_FILE, template.as_bytes().to_vec())));
        files.into_iter().map(|(name, contents)| (name.to_owned(), contents)).collect()
    }
}

/// Builds an object from the entries that have a value.
fn said<const N: usize>(entries: [(&str, Option<Value>); N]) -> Value {
    let said = entries.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(said.collect::<Map<_, _>>())
}

fn generation(defaults: &GenerationDefaults) -> Value {
    let GenerationDefaults { temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens, eos } =
        defaults;
    let number = |value: &Option<f32>| value.map(|value| json!(f64::from(value)));
    said([
        ("temperature", number(temperature)),
        ("top_p", number(top_p)),
        ("top_k", top_k.map(|value| json!(value))),
        ("min_p", number(min_p)),
        ("repetition_penalty", number(repetition_penalty)),
        ("max_new_tokens", max_new_tokens.map(|value| json!(value))),
        ("eos_token_id", eos.as_ref().map(|value| json!(value))),
    ])
}

fn special(config: &TokenizerConfig) -> Value {
    let TokenizerConfig {
        bos_token,
        eos_token,
        pad_token,
        unk_token,
        additional_special_tokens,
        add_bos_token,
        add_eos_token,
        model_max_length,
        clean_up_tokenization_spaces,
        tokenizer_class,
    } = config;
    let text = |value: &Option<String>| value.as_ref().map(|value| json!(value));
    let flag = |value: &Option<bool>| value.map(|value| json!(value));
    said([
        ("bos_token", text(bos_token)),
        ("eos_token", text(eos_token)),
        ("pad_token", text(pad_token)),
        ("unk_token", text(unk_token)),
        ("additional_special_tokens", Some(json!(additional_special_tokens))),
        ("add_bos_token", flag(add_bos_token)),
        ("add_eos_token", flag(add_eos_token)),
        ("model_max_length", model_max_length.map(|value| json!(value))),
        ("clean_up_tokenization_spaces", flag(clean_up_tokenization_spaces)),
        ("tokenizer_class", text(tokenizer_class)),
    ])
}
