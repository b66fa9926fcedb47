//! The models that a worker at another Headrace server offers, with their tokenizer assets. Assets are fetched once,
//! cached under their digest, and checked against it at every read. Must not know which model of this gateway they
//! answer for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_catalog::TokenBackend;
use headrace_checkpoint::Wording;
use headrace_domain::UnixNanos;
use headrace_engine_api::Capabilities;
use headrace_upstream::{ListedModel, ModelListing, Upstream};
use headrace_worker::{AboutModel, PackedAssets, WorkerInfo};

use crate::tokenizer_assets::TokenizerAssets;

/// The models of a worker whose tokenizer assets are here.
#[derive(Clone, Default)]
pub(crate) struct WorkerModels {
    models: BTreeMap<String, RemoteModel>,
    /// Models that cannot be served, each with the reason.
    pub(crate) faults: Vec<String>,
}

/// One model of a worker.
#[derive(Clone)]
pub(crate) struct RemoteModel {
    pub(crate) about: AboutModel,
    pub(crate) assets: Arc<TokenizerAssets>,
}

impl WorkerModels {
    pub(crate) fn get(&self, model: &str) -> Option<&RemoteModel> {
        self.models.get(model)
    }

    /// The worker's models as any server lists its models.
    pub(crate) fn listed(&self) -> ModelListing {
        let listed = |(id, their): (&String, &RemoteModel)| ListedModel {
            id: id.clone(),
            context_window: Some(their.about.capabilities.context_window),
            created: Some(their.about.created_unix_s),
            owned_by: None,
        };
        ModelListing { models: self.models.iter().map(listed).collect(), left_out: 0 }
    }

    /// Whether both answer for the same models in the same way. Compares what a call can depend on.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let kept = |their: &RemoteModel| {
            let AboutModel { bits, words, capabilities, default_max_tokens, .. } = their.about.clone();
            (bits, words, capabilities, default_max_tokens)
        };
        let mut others = other.models.iter();
        self.faults == other.faults
            && self.models.len() == other.models.len()
            && self.models.iter().all(|(name, their)| {
                others.next().is_some_and(|(same, it)| name == same && kept(their) == kept(it))
            })
    }
}

impl RemoteModel {
    /// The token backend of a model that these engines answer for. Returns `None` if there are no engines.
    pub(crate) fn token_backend<'a>(
        &self,
        engines: impl IntoIterator<Item = &'a Capabilities>,
    ) -> Option<TokenBackend> {
        let mut backend = self.assets.token_backend(engines)?;
        // Workers are compared by their bits. Callers are shown the same numerics as for a local engine.
        if !backend.capabilities.numerics.is_empty() {
            backend.capabilities.numerics.clone_from(&self.about.capabilities.numerics);
        }
        Some(backend)
    }
}

/// Asks a worker for its models. Tokenizer assets that are not among `known` come from the cache, or else from the
/// worker.
///
/// # Errors
/// Returns why the worker does not list its models, as a message.
pub(crate) async fn ask(
    upstream: &Upstream,
    known: &WorkerModels,
    cache: Option<&Path>,
    now: UnixNanos,
) -> Result<WorkerModels, String> {
    let WorkerInfo { models, .. } = upstream.about(now).await.map_err(|error| error.to_string())?;
    let mut theirs = WorkerModels::default();
    for about in models {
        let name = about.capabilities.model.clone();
        let same = known.models.values().find(|their| their.about.words == about.words);
        let assets = match same {
            Some(their) => Ok(Arc::clone(&their.assets)),
            None => fetch_assets(upstream, &about, cache, now).await,
        };
        match assets {
            Ok(assets) => drop(theirs.models.insert(name, RemoteModel { about, assets })),
            Err(why) => theirs.faults.push(format!("its model `{name}`: {why}")),
        }
    }
    Ok(theirs)
}

async fn fetch_assets(
    upstream: &Upstream,
    about: &AboutModel,
    cache: Option<&Path>,
    now: UnixNanos,
) -> Result<Arc<TokenizerAssets>, String> {
    // The digest is hexadecimal, so the path stays inside the cache directory.
    let file = cache.map(|cache| cache.join(&about.words));
    let kept = file.as_ref().and_then(|file| {
        let bytes = std::fs::read(file).ok()?;
        PackedAssets::taken(bytes.into(), &about.words).ok()
    });
    let words = match kept {
        Some(words) => words,
        None => {
            let words = upstream.words(&about.words, now).await.map_err(|error| error.to_string())?;
            if let Some(file) = &file
                && let Err(error) = keep(file, words.bytes())
            {
                tracing::warn!(%error, file = %file.display(), "the words of a worker's model cannot be kept");
            }
            words
        }
    };
    let files = words.files().map_err(|fault| fault.to_string())?;
    let files = files.into_iter().map(|(name, contents)| (name, Cow::Owned(contents))).collect();
    let wording = Wording::from_files(files).map_err(|error| error.to_string())?;
    Ok(Arc::new(TokenizerAssets::read(&wording, &about.words, None)?))
}

/// Writes the file completely or not at all.
fn keep(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let dir = file.parent().map_or_else(PathBuf::new, Path::to_owned);
    std::fs::create_dir_all(&dir)?;
    let mut half = file.to_owned();
    half.set_extension(format!("{}.part", std::process::id()));
    std::fs::write(&half, bytes)?;
    std::fs::rename(&half, file)
}
