//! The facts of a decoder's checkpoint: its contents, the memory that it needs, and the context that fits here. Reads
//! headers only. Must not load weights.

use std::collections::BTreeMap;
use std::path::Path;

use headrace_checkpoint::{Architecture, Checkpoint, Format, ModelConfig, ModelRefusal, RopeScaling};
use headrace_inspect::Words;
use headrace_prompt::ReplyFamily;
use headrace_quant::BlockType;
use headrace_terminal::output;
use serde_json::{Value, json};

use super::kv::KvFacts;
use super::layers::LayerFacts;
use super::numbers::{bytes, count};
use crate::machine;
use crate::models::{RESERVE_BYTES, open_checkpoint, words_of};

/// Returns the facts as text.
pub(super) fn to_text(path: &Path, quantize: Option<BlockType>) -> Result<String, ModelRefusal> {
    let checkpoint = open_checkpoint(Some(path))?;
    Ok(CheckpointFacts::of(&checkpoint, quantize)?.text(path))
}

/// Returns the facts as JSON. `path` is `None` for the model that is built into the program.
pub(super) fn to_json(path: Option<&Path>, quantize: Option<BlockType>) -> Result<Value, ModelRefusal> {
    let checkpoint = open_checkpoint(path)?;
    Ok(CheckpointFacts::of(&checkpoint, quantize)?.json(path))
}

/// Everything that is shown.
struct CheckpointFacts<'a> {
    checkpoint: &'a Checkpoint,
    words: Words,
    /// The kind of model that the tokenizer has: `BPE`, `Unigram`, `WordPiece`.
    tokenizer_kind: String,
    /// Number of tensors, number of weights and bytes, by element type.
    types: BTreeMap<&'static str, (u64, u64, u64)>,
    /// Size of the weights in memory, in bytes.
    weights: u64,
    /// Bytes of the weights that one token of decoding reads.
    active: u64,
    /// Memory that this process may use, in bytes.
    memory: u64,
}

/// Why weights cannot be put into memory.
fn unusable(error: &dyn std::fmt::Display) -> ModelRefusal {
    ModelRefusal {
        code: "weights_unusable",
        message: error.to_string(),
        feature: "the weights".into(),
        found: error.to_string().into(),
        nearest: None,
        way_out: "leave out `--quantize`, or take the model in another format".to_owned(),
    }
}

impl<'a> CheckpointFacts<'a> {
    fn of(checkpoint: &'a Checkpoint, quantize: Option<BlockType>) -> Result<Self, ModelRefusal> {
        let words = words_of(checkpoint, None)?;
        let weights = headrace_model::weight_bytes(checkpoint, quantize).map_err(|error| unusable(&error))?;
        let active =
            headrace_model::active_weight_bytes(checkpoint, quantize).map_err(|error| unusable(&error))?;
        let mut types: BTreeMap<&'static str, (u64, u64, u64)> = BTreeMap::new();
        for (_, kind, shape, bytes) in checkpoint.stored_tensors() {
            let sum = types.entry(kind).or_default();
            let weights = shape.iter().map(|n| *n as u64).product::<u64>();
            *sum = (sum.0 + 1, sum.1.saturating_add(weights), sum.2.saturating_add(bytes));
        }
        Ok(Self {
            checkpoint,
            words,
            tokenizer_kind: tokenizer_kind(checkpoint.tokenizer_json()),
            types,
            weights: u64::try_from(weights).unwrap_or(u64::MAX),
            active: u64::try_from(active).unwrap_or(u64::MAX),
            memory: machine::memory_bytes(),
        })
    }

    fn parameters(&self) -> u64 {
        self.types.values().fold(0, |sum, (_, weights, _)| sum.saturating_add(*weights))
    }

    /// Default size of the KV pool, in bytes.
    fn pool(&self) -> u64 {
        self.memory.saturating_sub(self.weights).saturating_sub(RESERVE_BYTES) / 2
    }

    /// The cache for each type of keys and values.
    fn kv(&self) -> Vec<KvFacts> {
        KvFacts::all(self.checkpoint.config(), self.pool())
    }

    fn fits(&self) -> bool {
        self.weights.saturating_add(RESERVE_BYTES) < self.memory
    }

    fn template(&self) -> String {
        let replies = self.words.replies;
        let thoughts = if replies.thinks() { ", with thoughts" } else { "" };
        match (&self.words.template, replies.family) {
            (None, _) => "none: completions only, no chat".to_owned(),
            (Some(_), ReplyFamily::Plain) => format!("yes, without tool calls{thoughts}"),
            (Some(_), family) => format!("yes, with tool calls ({}){thoughts}", family.name()),
        }
    }

    fn text(&self, path: &Path) -> String {
        let config = self.checkpoint.config();
        let layers = LayerFacts::of(config);
        let mut lines: Vec<(&str, String)> = vec![
            ("format", self.format()),
            ("architecture", config.architecture.hf_name().to_owned()),
            ("parameters", count(self.parameters())),
            ("layers", config.layers.len().to_string()),
            ("hidden", format!("{}, MLP {}", config.hidden_size, layers.inner())),
            ("heads", layers.heads()),
            ("context", format!("{} tokens", config.max_positions)),
            ("rope", rope(config)),
            ("switches", switches(config)),
            ("vocabulary", self.vocabulary()),
            ("template", self.template()),
            ("identity", self.checkpoint.fingerprint().get(..16).unwrap_or_default().to_owned()),
        ];
        if let Some(recurrent) = layers.recurrent() {
            let state = bytes(headrace_model::state_bytes_per_slot(config) as u64);
            lines.push(("states", format!("{recurrent}; {state} for each sequence")));
        }
        let fits = match self.fits() {
            true => format!("{} for weights, {} for the KV pool", bytes(self.weights), bytes(self.pool())),
            false => format!("{} for weights: more than there is", bytes(self.weights)),
        };
        lines.push(("memory", format!("{fits}, of {} here", bytes(self.memory))));
        lines.push(("decode", format!("reads {} of weights for a token", bytes(self.active))));
        let mut text = format!("{}\n", path.display());
        for (name, value) in lines {
            text.push_str(&format!("  {name:<13}{value}\n"));
        }
        text.push('\n');
        text.push_str(&indented(&self.type_table()));
        text.push('\n');
        text.push_str(&indented(&KvFacts::table(&self.kv())));
        for warning in self.checkpoint.warnings() {
            text.push_str(&format!("\nwarning: {warning}\n"));
        }
        if !self.fits() {
            text.push_str(
                "\nIt would not be served here: give the process more memory, or a smaller type.\n",
            );
        }
        text
    }

    fn type_table(&self) -> String {
        let rows = self.types.iter().map(|(kind, (tensors, weights, size))| {
            vec![(*kind).to_owned(), tensors.to_string(), count(*weights), bytes(*size)]
        });
        output::table(&["type", "tensors", "weights", "bytes"], rows.collect())
    }

    fn format(&self) -> String {
        let files = self.checkpoint.weight_files().count();
        let format = match self.checkpoint.format() {
            Format::Safetensors => "safetensors",
            Format::Gguf => "GGUF",
        };
        let plural = if files == 1 { "file" } else { "files" };
        format!("{format}, {files} {plural} with {} of weights", bytes(self.checkpoint.weight_bytes()))
    }

    fn vocabulary(&self) -> String {
        let (ids, rows) = (self.words.tokenizer.vocab_size(), self.checkpoint.config().vocab_size);
        let padding = if rows > ids { format!(", padded to {rows}") } else { String::new() };
        format!("{ids} tokens ({}){padding}", self.tokenizer_kind)
    }

    fn json(&self, path: Option<&Path>) -> Value {
        let config = self.checkpoint.config();
        let layers = LayerFacts::of(config);
        let types = self.types.iter().map(|(kind, (tensors, weights, size))| {
            json!({"type": kind, "tensors": tensors, "weights": weights, "bytes": size})
        });
        let files = self.checkpoint.weight_files().map(|(name, size)| json!({"name": name, "bytes": size}));
        json!({
            "path": path.map(|path| path.display().to_string()),
            "format": match self.checkpoint.format() { Format::Gguf => "gguf", Format::Safetensors => "safetensors" },
            "files": files.collect::<Vec<_>>(),
            "fingerprint": self.checkpoint.fingerprint(),
            "architecture": config.architecture.hf_name(),
            "parameters": self.parameters(),
            "hidden_size": config.hidden_size,
            "intermediate_size": layers.first_inner(),
            "layers": config.layers.len(),
            "heads": layers.first_attention(|attention| attention.heads),
            "kv_heads": layers.first_attention(|attention| attention.kv_heads),
            "head_dim": layers.first_attention(|attention| attention.head_dim),
            "attention": layers.json(),
            "recurrent": layers.recurrent_json(),
            "state_bytes": headrace_model::state_bytes_per_slot(config),
            "context_length": config.max_positions,
            "rope": rope(config),
            "tied_embeddings": config.is_tied(),
            "tensor_types": types.collect::<Vec<_>>(),
            "tokenizer": {
                "kind": self.tokenizer_kind, "tokens": self.words.tokenizer.vocab_size(), "embedding_rows": config.vocab_size,
            },
            "chat_template": self.checkpoint.chat_template().is_some(),
            "stored_bytes": self.checkpoint.weight_bytes(),
            "weight_bytes": self.weights,
            "active_weight_bytes": self.active,
            "memory_bytes": self.memory,
            "kv_pool_bytes": self.pool(),
            "kv": self.kv().iter().map(KvFacts::json).collect::<Vec<_>>(),
            "fits": self.fits(),
            "warnings": self.checkpoint.warnings(),
        })
    }
}

pub(super) fn tokenizer_kind(json: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct ProbeTokenizer {
        model: ProbeModel,
    }
    #[derive(serde::Deserialize)]
    struct ProbeModel {
        r#type: Option<String>,
        #[serde(default)]
        byte_fallback: bool,
    }
    let probe: Option<ProbeTokenizer> = serde_json::from_slice(json).ok();
    match probe.map(|probe| (probe.model.r#type, probe.model.byte_fallback)) {
        Some((Some(kind), true)) => format!("SentencePiece {kind}"),
        Some((Some(kind), false)) if kind == "BPE" => "byte-level BPE".to_owned(),
        Some((Some(kind), false)) => kind,
        _ => "unknown".to_owned(),
    }
}

fn rope(config: &ModelConfig) -> String {
    let each = config.rotary.iter().map(|rotary| {
        let scaling = match &rotary.rope.scaling {
            RopeScaling::None => "not scaled".to_owned(),
            RopeScaling::Linear { factor } => format!("linear, {factor}×"),
            RopeScaling::Llama3 { factor, .. } => format!("Llama 3, {factor}×"),
            RopeScaling::Yarn { factor, .. } => format!("YaRN, {factor}×"),
            RopeScaling::Long { original_max_positions, factor, .. } => {
                format!("LongRoPE, {factor}×, other factors beyond {original_max_positions} tokens")
            }
            RopeScaling::Divided { .. } => "a factor for each pair".to_owned(),
        };
        format!("base {}, {scaling}", rotary.rope.theta)
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() { "none".to_owned() } else { each.join("; ") }
}

fn switches(config: &ModelConfig) -> String {
    let mut all =
        vec![(config.is_tied(), "tied embeddings"), (!config.is_tied(), "an output projection of its own")];
    if let Some(uniform) = &config.uniform {
        let is_qwen2 = uniform.architecture == Architecture::Qwen2;
        all.extend([
            (uniform.qk_norm, "normalized queries and keys"),
            (is_qwen2, "biases on queries, keys and values"),
            (uniform.qkv_bias && !is_qwen2, "biases on attention"),
            (uniform.mlp_bias, "biases on the MLP"),
        ]);
    }
    all.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect::<Vec<_>>().join(", ")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {}\n", line.trim_start())).collect()
}
