//! Tokenizer assets of models that upstreams compute from this gateway's token ids. Reads tokenizer, template and
//! sizes, but never weights. Must not know which server has the model, nor whether it answers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use headrace_catalog::TokenBackend;
use headrace_checkpoint::{ModelRefusal, Wording};
use headrace_config::ServerSettings;
use headrace_config::relayed::{RelayedConfig, WordsAt};
use headrace_domain::{Clock, ModelName, SamplingDefaults};
use headrace_engine_api::Capabilities;
use headrace_grammar::FormCompiler;
use headrace_inspect::Words;
use headrace_prompt::{ChatTemplate, ReplyFamily, ReplyStyle};
use headrace_tokenizer::Tokenizer;
use headrace_upstream::{TokenModel, TokenModelSpec, Upstream};

use crate::models::{ModelFault, ServingFault, demo_files, recommended_sampling};

/// The tokenizer assets of every model whose targets get token ids.
pub type AssetsByModel = BTreeMap<ModelName, Arc<TokenizerAssets>>;

/// The tokenizer assets of one model.
pub struct TokenizerAssets {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    replies: ReplyStyle,
    defaults: SamplingDefaults,
    eos: Vec<u32>,
    vocab: u32,
    grammars: Arc<FormCompiler>,
    /// Maximum length of prompt and answer together in tokens, if the files state it.
    pub(crate) context_window: Option<u32>,
    /// The answer length that the model's authors recommend.
    pub(crate) default_max_tokens: Option<u32>,
    /// Hash of the files. Equal hashes mean equal assets.
    pub(crate) fingerprint: Arc<str>,
}

/// Reads the tokenizer assets of all models whose targets get token ids.
///
/// # Errors
/// Returns every model whose assets cannot be read.
pub(crate) fn read(config: &ServerSettings) -> Result<AssetsByModel, Vec<ModelFault>> {
    let (mut assets_by_model, mut faults) = (AssetsByModel::new(), Vec::new());
    for model in &config.relayed {
        let Some(at) = &model.words else { continue };
        match TokenizerAssets::open(at, model) {
            Ok(assets) => drop(assets_by_model.insert(model.name.clone(), Arc::new(assets))),
            Err(why) => faults.push(ModelFault::of_model(&model.setting, &model.name, why)),
        }
    }
    if faults.is_empty() { Ok(assets_by_model) } else { Err(faults) }
}

impl TokenizerAssets {
    fn open(at: &WordsAt, model: &RelayedConfig) -> Result<Self, ServingFault> {
        let wording = match at {
            WordsAt::Demo => Wording::from_files(demo_files()).map_err(|error| error.to_string())?,
            WordsAt::Files(path) => open_wording(path)?,
        };
        let assets = Self::read(&wording, wording.fingerprint(), model.reply)?;
        if assets.context_window.or(model.context_window).is_none() {
            let why = "its files do not say how long a context may be: add `context_window`";
            return Err(why.to_owned().into());
        }
        Ok(assets)
    }

    /// Reads the tokenizer assets from a model's files, which have this fingerprint.
    ///
    /// # Errors
    /// Returns what in the files cannot be served.
    pub(crate) fn read(
        wording: &Wording,
        fingerprint: &str,
        reply: Option<ReplyFamily>,
    ) -> Result<Self, String> {
        let config = wording.tokenizer_config();
        let words = Words::read(wording.tokenizer_json(), config, wording.chat_template(), reply)
            .map_err(|error| error.to_string())?;
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let vocab = count(wording.vocab_size());
        let grammars = FormCompiler::new(Arc::clone(&words.tokenizer), wording.eos(), vocab);
        Ok(Self {
            grammars: Arc::new(grammars),
            tokenizer: words.tokenizer,
            template: words.template,
            replies: words.replies,
            defaults: recommended_sampling(wording.generation()),
            eos: wording.eos().to_vec(),
            vocab,
            context_window: wording.max_positions().map(count),
            default_max_tokens: wording.generation().max_new_tokens.map(count),
            fingerprint: fingerprint.into(),
        })
    }

    /// The engine that sends this model's token ids to an upstream.
    ///
    /// # Errors
    /// Returns an error if servers of that kind take no token ids.
    pub(crate) fn engine(
        &self,
        upstream: &Upstream,
        theirs: &str,
        context_window: u32,
        clock: &Arc<dyn Clock>,
    ) -> Result<TokenModel, String> {
        let spec = TokenModelSpec {
            model: theirs.to_owned(),
            tokenizer: Arc::clone(&self.tokenizer),
            skip_special: true,
            eos: self.eos.clone(),
            vocab: self.vocab,
            context_window,
            clock: Arc::clone(clock),
        };
        TokenModel::new(upstream, spec)
    }

    /// The token backend of a model that these engines answer for, with the capabilities that all of them share.
    /// Returns `None` if there are no engines.
    pub(crate) fn token_backend<'a>(
        &self,
        engines: impl IntoIterator<Item = &'a Capabilities>,
    ) -> Option<TokenBackend> {
        let mut engines = engines.into_iter();
        let mut capabilities = engines.next()?.clone();
        for engine in engines {
            capabilities.context_window = capabilities.context_window.min(engine.context_window);
            capabilities.kv_tokens = capabilities.kv_tokens.min(engine.kv_tokens);
            if capabilities.numerics != engine.numerics {
                // The engines differ, so the numerics of an answer cannot be predicted.
                capabilities.numerics.clear();
            }
            capabilities.grammars &= engine.grammars;
            capabilities.thought_caps &= engine.thought_caps;
            capabilities.forms = capabilities.forms.and(engine.forms);
            if capabilities.short_context != engine.short_context {
                capabilities.short_context = None;
            }
        }
        Some(TokenBackend {
            tokenizer: Arc::clone(&self.tokenizer),
            template: self.template.clone(),
            replies: self.replies,
            defaults: self.defaults,
            capabilities,
            grammars: Arc::clone(&self.grammars),
        })
    }
}

pub(crate) fn open_wording(path: &Path) -> Result<Wording, ModelRefusal> {
    Wording::open(path).map_err(|error| ModelRefusal::of_path(path, &error))
}
