//! What is sent on, as the configuration says it: servers of others, and models that they answer for. Plain data; must not know how
//! it is read.

use std::path::PathBuf;

use headrace_domain::{ModelName, Region};
use headrace_gateway::{Inputs, Policy};
use headrace_ledger::prices::PriceConfig;
use headrace_limits::LimitSpec;
use headrace_prompt::ReplyFamily;
use headrace_upstream::UpstreamSpec;

use super::prices::play_price;

/// One server that calls are sent on to.
#[derive(Clone)]
pub(crate) struct UpstreamConfig {
    /// Where it stands in the configuration, such as `upstreams[0]`.
    pub(crate) setting: String,
    pub(crate) spec: UpstreamSpec,
    /// Where it is.
    pub(crate) region: Option<Region>,
    /// Every model that it lists is served, as `NAME/MODEL`.
    pub(crate) serve: bool,
    /// It speaks the Responses API, and is asked in it.
    pub(crate) passes_responses: bool,
    /// What tokens of its models cost that have no price of their own.
    pub(crate) price: Option<PriceConfig>,
    /// Of all that it is made of, its secrets included: another one is another server.
    pub(crate) fingerprint: [u8; 32],
}

impl UpstreamConfig {
    /// What tokens of one of its models cost that has no price of its own.
    pub(crate) fn price_of(&self, model: &ModelName, play_prices: bool) -> Option<PriceConfig> {
        let own = self.price.clone().map(|price| PriceConfig { model: model.clone(), ..price });
        own.or_else(|| play_prices.then(|| play_price(model.clone())))
    }
}

/// The upstream of a name.
pub(crate) fn find_upstream<'a>(upstreams: &'a [UpstreamConfig], name: &str) -> Option<&'a UpstreamConfig> {
    upstreams.iter().find(|upstream| upstream.spec.name == name)
}

/// A model that others' servers answer for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RelayedConfig {
    /// Where it stands in the configuration, such as `models[0]`.
    pub(crate) setting: String,
    pub(crate) name: ModelName,
    /// Who answers; at least one.
    pub(crate) targets: Vec<Target>,
    /// Its tokenizer and template are here: its targets are asked by token ids. `None`: they are asked in messages.
    pub(crate) words: Option<WordsAt>,
    /// How its calls of tools are written, where its template is not to say so.
    pub(crate) reply: Option<ReplyFamily>,
    pub(crate) default_max_tokens: Option<u32>,
    pub(crate) context_window: Option<u32>,
    /// What it takes beside text; `None`: its servers decide.
    pub(crate) inputs: Option<Inputs>,
    pub(crate) limits: LimitSpec,
    pub(crate) policy: Policy,
}

/// Where the tokenizer and the template of a model stand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WordsAt {
    /// In the program: the demo model's.
    Demo,
    /// In a directory, or a GGUF file.
    Files(PathBuf),
}

/// A model at an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// The upstream's name.
    pub(crate) upstream: String,
    /// The model's name there.
    pub(crate) model: String,
}

impl Target {
    /// `UPSTREAM/MODEL`; the model's name may have slashes itself.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((upstream, model)) if !upstream.is_empty() && !model.is_empty() => {
                Ok(Self { upstream: upstream.to_owned(), model: model.to_owned() })
            }
            _ => Err(format!("`{text}` is no target: write UPSTREAM/MODEL, such as \"openai/gpt-5\"")),
        }
    }
}
