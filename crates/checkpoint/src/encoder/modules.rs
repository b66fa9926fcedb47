//! Reads the files that sentence-transformers puts beside a model: `modules.json`, `1_Pooling/config.json`,
//! `sentence_bert_config.json` and `config_sentence_transformers.json`. They define how hidden states become a vector,
//! and the prompts. Must not know layers.

use std::collections::BTreeMap;

use serde_json::Value;

use super::config::EncoderConfig;
use crate::error::{CheckpointError, shown};
use crate::fields::Fields;
use crate::identity::Identity;
use crate::json::{parse_array, parse_object};
use crate::limits;
use crate::source::{Source, check_plain_name};

/// File name of the list of modules.
pub(crate) const MODULES_FILE: &str = "modules.json";
const LENGTH_FILE: &str = "sentence_bert_config.json";
const PROMPTS_FILE: &str = "config_sentence_transformers.json";

/// Selects the hidden states that make a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The first token's state.
    Cls,
    /// The last token's state.
    Last,
}

impl Pooling {
    /// The name, as in `pooling_mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "lasttoken",
        }
    }
}

/// The steps around an encoder's body: text preparation, pooling and normalization.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modules {
    /// Whether the checkpoint has a `modules.json`. If not, pooling and normalization are the family's defaults.
    pub given: bool,
    /// The pooling of hidden states.
    pub pooling: Pooling,
    /// Whether vectors are scaled to length 1.
    pub normalize: bool,
    /// Maximum tokens of a text that the model was made for. `None` if the checkpoint does not say.
    pub max_tokens: Option<usize>,
    /// Whether texts are lower-cased before tokenization.
    pub lower_case: bool,
    /// Prompts that are put before a text, by the name of their purpose.
    pub prompts: BTreeMap<String, String>,
    /// The prompt that is put before a text if the caller names none.
    pub default_prompt: Option<String>,
}

impl Modules {
    /// Reads the files that exist. Without `modules.json`, pooling is `default` and vectors have length 1.
    pub(crate) fn read(
        source: &mut Source,
        config: &EncoderConfig,
        identity: &mut Identity,
        default: Pooling,
    ) -> Result<Self, CheckpointError> {
        let mut modules = Self {
            given: false,
            pooling: default,
            normalize: true,
            max_tokens: None,
            lower_case: false,
            prompts: BTreeMap::new(),
            default_prompt: None,
        };
        if let Some(bytes) = file(source, MODULES_FILE, identity)? {
            modules.given = true;
            modules.list(source, &parse_array(MODULES_FILE, &bytes)?, config, identity)?;
        }
        if let Some(bytes) = file(source, LENGTH_FILE, identity)? {
            let members = parse_object(LENGTH_FILE, &bytes)?;
            let fields = Fields::new(LENGTH_FILE, &members);
            modules.max_tokens = fields.count("max_seq_length", 1..=limits::MAX_POSITIONS)?;
            modules.lower_case = fields.flag("do_lower_case")?.unwrap_or(false);
        }
        if let Some(bytes) = file(source, PROMPTS_FILE, identity)? {
            let members = parse_object(PROMPTS_FILE, &bytes)?;
            modules.prompts(&Fields::new(PROMPTS_FILE, &members))?;
        }
        Ok(modules)
    }

    /// Checks the module list: a transformer, a pooling and an optional normalization, in this order.
    fn list(
        &mut self,
        source: &mut Source,
        list: &[Value],
        config: &EncoderConfig,
        identity: &mut Identity,
    ) -> Result<(), CheckpointError> {
        let refuse = |at: usize, problem: String| CheckpointError::Field {
            file: MODULES_FILE.to_owned(),
            field: format!("[{at}].type"),
            problem,
        };
        if list.len() > limits::MAX_MODULES {
            let problem = format!("{} modules, the most is {}", list.len(), limits::MAX_MODULES);
            return Err(refuse(limits::MAX_MODULES, problem));
        }
        self.normalize = false;
        let mut kinds = Vec::with_capacity(list.len());
        for (at, module) in list.iter().enumerate() {
            let text = |field| module.get(field).and_then(Value::as_str);
            let kind = text("type").and_then(|path| path.rsplit('.').next()).unwrap_or_default();
            match (at, kind) {
                (0, "Transformer") if text("path").unwrap_or_default().is_empty() => {}
                (0, "Transformer") => {
                    return Err(refuse(
                        at,
                        "its files are expected in the model directory itself".to_owned(),
                    ));
                }
                (1, "Pooling") => self.pooling(source, text("path"), config, identity)?,
                (2, "Normalize") => self.normalize = true,
                _ => {
                    let problem = format!(
                        "{} is not supported here; Transformer, Pooling and Normalize are, in this order",
                        shown(kind)
                    );
                    return Err(refuse(at, problem));
                }
            }
            kinds.push(kind);
        }
        match kinds.as_slice() {
            ["Transformer", "Pooling", ..] => Ok(()),
            _ => Err(refuse(kinds.len(), "Transformer and Pooling are needed".to_owned())),
        }
    }

    fn pooling(
        &mut self,
        source: &mut Source,
        path: Option<&str>,
        config: &EncoderConfig,
        identity: &mut Identity,
    ) -> Result<(), CheckpointError> {
        let folder = path.unwrap_or("1_Pooling");
        check_plain_name(folder)?;
        let name = format!("{folder}/config.json");
        let Some(bytes) = file(source, &name, identity)? else {
            let remedy = format!("{MODULES_FILE} names it; download the whole repository");
            return Err(CheckpointError::MissingFile { file: name, remedy });
        };
        let members = parse_object(&name, &bytes)?;
        let fields = Fields::new(&name, &members);
        for field in ["word_embedding_dimension", "embedding_dimension"] {
            if let Some(width) = fields.count(field, 1..=limits::MAX_HIDDEN_SIZE)?
                && width != config.hidden_size
            {
                let problem = format!("{width} contradicts hidden_size {}", config.hidden_size);
                return Err(fields.problem(field, problem));
            }
        }
        if fields.flag("include_prompt")? == Some(false) {
            return Err(fields.unsupported("include_prompt", &Value::Bool(false), "true is"));
        }
        self.pooling = mode(&fields)?;
        Ok(())
    }

    fn prompts(&mut self, fields: &Fields<'_>) -> Result<(), CheckpointError> {
        let Some(prompts) = fields.object("prompts")? else { return Ok(()) };
        for (name, prompt) in prompts.values() {
            let Some(text) = prompt.as_str().filter(|text| text.len() <= limits::MAX_PROMPT_BYTES) else {
                let expected = format!("a string of at most {} bytes", limits::MAX_PROMPT_BYTES);
                return Err(prompts.wrong(&shown(name), prompt, &expected));
            };
            if self.prompts.len() == limits::MAX_PROMPTS {
                let problem = format!("holds more than {}", limits::MAX_PROMPTS);
                return Err(fields.problem("prompts", problem));
            }
            self.prompts.insert(name.clone(), text.to_owned());
        }
        if let Some(name) = fields.text("default_prompt_name")? {
            let Some(prompt) = self.prompts.get(name) else {
                return Err(
                    fields.problem("default_prompt_name", format!("{} is none of prompts", shown(name)))
                );
            };
            self.default_prompt = Some(prompt.clone()).filter(|prompt| !prompt.is_empty());
        }
        Ok(())
    }
}

/// Reads the one pooling mode, in either spelling.
fn mode(fields: &Fields<'_>) -> Result<Pooling, CheckpointError> {
    const SUPPORTED: &str = "one of mean, cls and lasttoken is";
    if let Some(value) = fields.get("pooling_mode") {
        return match value.as_str() {
            Some("mean") => Ok(Pooling::Mean),
            Some("cls") => Ok(Pooling::Cls),
            Some("lasttoken") => Ok(Pooling::Last),
            _ => Err(fields.unsupported("pooling_mode", value, SUPPORTED)),
        };
    }
    let mut found = None;
    for (field, value) in fields.values() {
        if !field.starts_with("pooling_mode_") || value.as_bool() != Some(true) {
            continue;
        }
        let pooling = match field.as_str() {
            "pooling_mode_mean_tokens" => Pooling::Mean,
            "pooling_mode_cls_token" => Pooling::Cls,
            "pooling_mode_lasttoken" => Pooling::Last,
            _ => return Err(fields.unsupported(field, value, SUPPORTED)),
        };
        if found.replace(pooling).is_some() {
            return Err(fields.unsupported(field, value, SUPPORTED));
        }
    }
    found.ok_or_else(|| fields.missing("pooling_mode_mean_tokens"))
}

fn file(
    source: &mut Source,
    name: &str,
    identity: &mut Identity,
) -> Result<Option<std::borrow::Cow<'static, [u8]>>, CheckpointError> {
    let bytes = source.read(name, limits::MAX_MODULE_CONFIG_BYTES)?;
    if let Some(bytes) = &bytes {
        identity.add(name, bytes);
    }
    Ok(bytes)
}
