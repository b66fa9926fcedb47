//! Configured upstreams, and the models that they answer for. Plain data; must not know how it is read.

use std::path::PathBuf;

use headrace_catalog::{InputKinds, ModelPolicy};
use headrace_domain::{ModelName, Region};
use headrace_ledger::prices::PriceConfig;
use headrace_limits::LimitSpec;
use headrace_prompt::ReplyFamily;
use headrace_upstream::UpstreamSpec;

use super::prices::play_price;

/// One server that calls are sent to.
#[derive(Clone)]
pub struct UpstreamConfig {
    /// Path of its table in the configuration, such as `upstreams[0]`.
    pub setting: String,
    /// Its name, address and kind, and how it is asked.
    pub spec: UpstreamSpec,
    /// The region that the server is in.
    pub region: Option<Region>,
    /// Whether every model that it lists is served, as `NAME/MODEL`.
    pub serve: bool,
    /// Whether Responses calls are passed to it in the Responses API, which it speaks itself.
    pub passes_responses: bool,
    /// Default price for this upstream's models that have none of their own.
    pub price: Option<PriceConfig>,
    /// Hash of its whole table and its secrets. A server with another hash is a different server.
    pub fingerprint: [u8; 32],
}

impl UpstreamConfig {
    /// The price of one of its models that has no price of its own. `None` if the upstream has no default price either.
    pub fn price_of(&self, model: &ModelName, play_prices: bool) -> Option<PriceConfig> {
        let own = self.price.clone().map(|price| PriceConfig { model: model.clone(), ..price });
        own.or_else(|| play_prices.then(|| play_price(model.clone())))
    }
}

/// Finds the upstream with that name.
pub fn find_upstream<'a>(upstreams: &'a [UpstreamConfig], name: &str) -> Option<&'a UpstreamConfig> {
    upstreams.iter().find(|upstream| upstream.spec.name == name)
}

/// A model that upstreams answer for.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayedConfig {
    /// Path of its table in the configuration, such as `models[0]`.
    pub setting: String,
    /// Its name for callers.
    pub name: ModelName,
    /// The targets that answer; at least one.
    pub targets: Vec<RelayTarget>,
    /// The tokenizer assets. With them, targets get token ids; with `None`, they get messages.
    pub words: Option<WordsAt>,
    /// The format of tool calls in its answers. If set, it overrides the one that the template implies.
    pub reply: Option<ReplyFamily>,
    /// Maximum tokens of an answer to a call that sets no maximum, if set.
    pub default_max_tokens: Option<u32>,
    /// Its maximum context in tokens, if set.
    pub context_window: Option<u32>,
    /// Inputs that it takes besides text. `None` leaves the decision to its servers.
    pub inputs: Option<InputKinds>,
    /// Its limits, over all callers.
    pub limits: LimitSpec,
    /// How its calls are handled.
    pub policy: ModelPolicy,
}

/// The place of a model's tokenizer assets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WordsAt {
    /// The demo model's, which are built into the program.
    Demo,
    /// A directory or a GGUF file.
    Files(PathBuf),
}

/// A model at an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayTarget {
    /// The upstream's name.
    pub upstream: String,
    /// The model's name there.
    pub model: String,
}

impl RelayTarget {
    /// Parses `UPSTREAM/MODEL`. The model's name may contain slashes.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((upstream, model)) if !upstream.is_empty() && !model.is_empty() => {
                Ok(Self { upstream: upstream.to_owned(), model: model.to_owned() })
            }
            _ => Err(format!("`{text}` is no target: write UPSTREAM/MODEL, such as \"openai/gpt-5\"")),
        }
    }
}
