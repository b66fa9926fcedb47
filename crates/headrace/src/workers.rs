//! What another Headrace has as a worker: its models with their words, which are fetched once, kept by their digest beside the data,
//! and checked against it whenever they are read. Must not know which of our models is answered by them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headrace_checkpoint::Wording;
use headrace_domain::UnixNanos;
use headrace_engine_api::Capabilities;
use headrace_gateway::TokenLane;
use headrace_upstream::{ListedModel, Listing, Upstream};
use headrace_worker::{About, AboutModel, Words};

use crate::wordbooks::Wordbook;

/// What a worker has of which the words are here.
#[derive(Clone, Default)]
pub(crate) struct Theirs {
    models: BTreeMap<String, Their>,
    /// What of it cannot be served, and why.
    pub(crate) faults: Vec<String>,
}

/// One model of a worker.
#[derive(Clone)]
pub(crate) struct Their {
    pub(crate) about: AboutModel,
    pub(crate) book: Arc<Wordbook>,
}

impl Theirs {
    pub(crate) fn get(&self, model: &str) -> Option<&Their> {
        self.models.get(model)
    }

    /// As any server lists its models.
    pub(crate) fn listed(&self) -> Listing {
        let listed = |(id, their): (&String, &Their)| ListedModel {
            id: id.clone(),
            context_window: Some(their.about.capabilities.context_window),
            created: Some(their.about.created_unix_s),
            owned_by: None,
        };
        Listing { models: self.models.iter().map(listed).collect(), left_out: 0 }
    }

    /// Whether they are answered for in the same way.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let kept = |their: &Their| {
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

impl Their {
    /// The lane of a model that these answer for; `None`: there are none.
    pub(crate) fn lane<'a>(&self, engines: impl IntoIterator<Item = &'a Capabilities>) -> Option<TokenLane> {
        let mut lane = self.book.lane(engines)?;
        // Between workers it is their bits that are compared; callers are told what an engine here would tell.
        if !lane.capabilities.numerics.is_empty() {
            lane.capabilities.numerics.clone_from(&self.about.capabilities.numerics);
        }
        Some(lane)
    }
}

/// Asks a worker what it has. Words that are not among `known` come from the cache, or from there.
///
/// # Errors
/// It does not say what it is, in words.
pub(crate) async fn ask(
    upstream: &Upstream,
    known: &Theirs,
    cache: Option<&Path>,
    now: UnixNanos,
) -> Result<Theirs, String> {
    let About { models, .. } = upstream.about(now).await.map_err(|error| error.to_string())?;
    let mut theirs = Theirs::default();
    for about in models {
        let name = about.capabilities.model.clone();
        let same = known.models.values().find(|their| their.about.words == about.words);
        let book = match same {
            Some(their) => Ok(Arc::clone(&their.book)),
            None => book(upstream, &about, cache, now).await,
        };
        match book {
            Ok(book) => drop(theirs.models.insert(name, Their { about, book })),
            Err(why) => theirs.faults.push(format!("its model `{name}`: {why}")),
        }
    }
    Ok(theirs)
}

async fn book(
    upstream: &Upstream,
    about: &AboutModel,
    cache: Option<&Path>,
    now: UnixNanos,
) -> Result<Arc<Wordbook>, String> {
    // The digest is hexadecimal: what it names lies within.
    let file = cache.map(|cache| cache.join(&about.words));
    let kept = file.as_ref().and_then(|file| {
        let bytes = std::fs::read(file).ok()?;
        Words::taken(bytes.into(), &about.words).ok()
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
    Ok(Arc::new(Wordbook::read(&wording, &about.words, None)?))
}

/// Whole or not at all.
fn keep(file: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let dir = file.parent().map_or_else(PathBuf::new, Path::to_owned);
    std::fs::create_dir_all(&dir)?;
    let mut half = file.to_owned();
    half.set_extension(format!("{}.part", std::process::id()));
    std::fs::write(&half, bytes)?;
    std::fs::rename(&half, file)
}
