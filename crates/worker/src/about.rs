//! A worker's description of itself: its models, their bits and tokenizer assets, and their load. JSON, so that later
//! versions can add fields. Every value is checked before it is used.

use headrace_domain::ModelName;
use headrace_engine_api::{Capabilities, GroupBlocks, LoadReport};
use serde::{Deserialize, Serialize};

use crate::limits::{MAX_MODELS, MAX_SEQUENCES, MAX_TOKENS, PROTOCOL};

/// Maximum length of a digest or fingerprint, in hexadecimal characters.
const MAX_HEX_CHARS: usize = 128;
/// Maximum number of embedding rows, and of tokens in a context window.
const MOST: u32 = 1 << 28;

/// A worker's description of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// The protocol version that the worker speaks.
    pub protocol: u8,
    /// The worker's software version.
    pub version: String,
    /// The worker's models.
    pub models: Vec<AboutModel>,
}

/// One model of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutModel {
    /// Identifies everything that decides the bits of an answer. Workers with equal values compute equal bits.
    pub bits: String,
    /// The digest of the model's tokenizer assets.
    pub words: String,
    /// The capabilities of the model's engine.
    pub capabilities: Capabilities,
    /// Whether a job for the model may contain the form of its answers. It is not part of `capabilities`, because older
    /// gateways would rely on it although their jobs contain no forms.
    #[serde(default)]
    pub holds_forms: bool,
    /// Whether a job for the model may contain the prefixes to keep, and ask for a complete report at its end
    /// ([`crate::Ask::fuller`]). Older workers refuse such a job.
    #[serde(default)]
    pub fuller_jobs: bool,
    /// Creation time of the model, in seconds since 1970.
    pub created_unix_s: u64,
    /// Length of an answer if the caller sets none, in tokens.
    pub default_max_tokens: Option<u32>,
    /// Whether the engine takes jobs.
    pub up: bool,
    /// The load of the engine.
    pub load: LoadReport,
}

impl WorkerInfo {
    /// Parses a worker's description.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub fn read(json: &[u8]) -> Result<Self, String> {
        let mut about: Self =
            serde_json::from_slice(json).map_err(|error| format!("it does not say what it is: {error}"))?;
        if about.protocol != PROTOCOL {
            let Self { protocol, .. } = about;
            return Err(format!(
                "it speaks version {protocol} of the worker protocol, and {PROTOCOL} is spoken here: update the older of both"
            ));
        }
        if about.models.len() > MAX_MODELS {
            return Err(format!("it names {} models; at most {MAX_MODELS} are taken", about.models.len()));
        }
        about.version = about.version.chars().filter(char::is_ascii_graphic).take(64).collect();
        for model in &mut about.models {
            model.check()?;
            model.load = bounded(model.load);
            model.capabilities.grammars = model.holds_forms;
        }
        Ok(about)
    }
}

impl AboutModel {
    fn check(&self) -> Result<(), String> {
        let Capabilities { model, vocab, context_window, compute_mode, numerics, .. } = &self.capabilities;
        if let Err(error) = ModelName::new(model) {
            return Err(format!("a model that it names: {error}"));
        }
        let bad = |what: &str| Err(format!("it reports {what} of `{model}`"));
        let hex = |text: &str| {
            (16..=MAX_HEX_CHARS).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if !hex(&self.bits) || !hex(&self.words) {
            return bad("fingerprints that are none");
        }
        if !(1..=MOST).contains(vocab) || !(1..=MOST).contains(context_window) {
            return bad(&format!("a vocabulary of {vocab} and a context of {context_window}"));
        }
        if compute_mode.len().max(numerics.len()) > 1_000 {
            return bad("more of its numerics than is read");
        }
        Ok(())
    }
}

/// Limits a worker's load report to values that are safe to compute with.
pub(crate) fn bounded(load: LoadReport) -> LoadReport {
    LoadReport {
        running: load.running.min(MAX_SEQUENCES),
        paused: load.paused.min(MAX_SEQUENCES),
        waiting: load.waiting.min(MAX_SEQUENCES),
        waiting_tokens: load.waiting_tokens.min(MAX_TOKENS),
        blocks_free: load.blocks_free.min(load.blocks_total),
        blocks_cached: load.blocks_cached.min(load.blocks_total),
        window: load.window.map(bounded_blocks),
        states: load.states.map(bounded_blocks),
        cache_used_permille: load.cache_used_permille.map(|used| used.min(1_000)),
        step_ns: load.step_ns.min(u64::MAX >> 1),
        forward_ns: load.forward_ns.min(load.step_ns),
        sample_ns: load.sample_ns.min(load.step_ns),
        ..load
    }
}

fn bounded_blocks(blocks: GroupBlocks) -> GroupBlocks {
    GroupBlocks { free: blocks.free.min(blocks.total), cached: blocks.cached.min(blocks.total), ..blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> WorkerInfo {
        let capabilities = Capabilities {
            model: "demo".into(),
            compute_mode: "exact".into(),
            numerics: "avx2".into(),
            vocab: 100,
            context_window: 200,
            max_logprobs: 20,
            kv_tokens: 1000,
            continues: headrace_engine_api::ResumeSupport::Exactly,
            grammars: false,
            thought_caps: false,
            forms: headrace_engine_api::FormKinds::NONE,
            short_context: None,
        };
        let window = Some(GroupBlocks { total: 4, free: 9, cached: 9 });
        let load =
            LoadReport { waiting: u32::MAX, waiting_tokens: u64::MAX, window, ..LoadReport::default() };
        let model = AboutModel {
            bits: "ab".repeat(32),
            words: "cd".repeat(32),
            capabilities,
            holds_forms: false,
            fuller_jobs: false,
            created_unix_s: 1,
            default_max_tokens: None,
            up: true,
            load,
        };
        WorkerInfo { protocol: PROTOCOL, version: "0.1.0".into(), models: vec![model] }
    }

    fn read(about: &WorkerInfo) -> Result<WorkerInfo, String> {
        WorkerInfo::read(&serde_json::to_vec(about).unwrap())
    }

    #[test]
    fn what_a_worker_tells_is_read_within_bounds() {
        let read = read(&about()).unwrap();
        assert_eq!(read.models[0].capabilities, about().models[0].capabilities);
        let window = GroupBlocks { total: 4, free: 4, cached: 4 };
        assert_eq!(read.models[0].load.window, Some(window));
        assert!(read.models[0].load.waiting_tokens < u64::MAX && read.models[0].load.waiting < u32::MAX);
    }

    #[test]
    fn a_worker_of_before_takes_no_more_than_it_knows() {
        let mut sent = about();
        (sent.models[0].holds_forms, sent.models[0].fuller_jobs) = (true, true);
        sent.models[0].capabilities.short_context = Some(64);
        let now = read(&sent).unwrap();
        assert!(now.models[0].holds_forms && now.models[0].fuller_jobs);
        assert_eq!(now.models[0].capabilities.short_context, Some(64));
        let mut old = serde_json::to_value(&sent).unwrap();
        let model = old["models"][0].as_object_mut().unwrap();
        assert!(model.remove("holds_forms").is_some() && model.remove("fuller_jobs").is_some());
        assert!(model["capabilities"].as_object_mut().unwrap().remove("short_context").is_some());
        let old = WorkerInfo::read(old.to_string().as_bytes()).unwrap();
        assert!(!old.models[0].holds_forms && !old.models[0].fuller_jobs);
        assert_eq!(old.models[0].capabilities.short_context, None);
    }

    #[test]
    fn what_cannot_be_is_told_by_name() {
        type Change = fn(&mut WorkerInfo);
        let rows: [(Change, &str); 6] = [
            (|about| about.protocol = 9, "version 9 of the worker protocol"),
            (|about| about.models[0].bits = "no".into(), "fingerprints"),
            (|about| about.models[0].words = "../".repeat(8), "fingerprints"),
            (|about| about.models[0].capabilities.vocab = 0, "vocabulary of 0"),
            (|about| about.models[0].capabilities.model = "a\nb".into(), "not a valid model"),
            (|about| about.models = vec![about.models[0].clone(); 2000], "names 2000 models"),
        ];
        for (change, words) in rows {
            let mut about = about();
            change(&mut about);
            let why = read(&about).unwrap_err();
            assert!(why.contains(words), "{why} should say {words}");
        }
        assert!(WorkerInfo::read(b"<html>").unwrap_err().contains("does not say what it is"));
    }
}
