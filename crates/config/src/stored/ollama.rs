//! Ollama's models: a manifest per tag, `manifests/HOST/NAMESPACE/NAME/TAG`, that names a blob per layer by its digest.
//! The layer of weights is a GGUF file. Knows no other program.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::{EntryBudget, LocalCheckpoint, entries};

const PROGRAM: &str = "Ollama";
/// The default registry and its default namespace, which users leave out of a model's name.
const REGISTRY: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const WEIGHTS: &str = "application/vnd.ollama.image.model";
/// Maximum size of a manifest, in bytes.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct OllamaManifest {
    layers: Vec<OllamaLayer>,
}

#[derive(Deserialize)]
struct OllamaLayer {
    #[serde(rename = "mediaType")]
    media_type: String,
    digest: String,
}

pub(super) fn list(place: &Path, budget: &mut EntryBudget, found: &mut Vec<LocalCheckpoint>) {
    for (host, path) in entries(&place.join("manifests"), budget) {
        for (namespace, path) in entries(&path, budget) {
            for (model, path) in entries(&path, budget) {
                for (tag, path) in entries(&path, budget) {
                    let name = match (host.as_str(), namespace.as_str()) {
                        (REGISTRY, NAMESPACE) => format!("{model}:{tag}"),
                        (REGISTRY, _) => format!("{namespace}/{model}:{tag}"),
                        _ => format!("{host}/{namespace}/{model}:{tag}"),
                    };
                    found.extend(stored(place, name, &path));
                }
            }
        }
    }
}

fn stored(place: &Path, name: String, manifest: &Path) -> Option<LocalCheckpoint> {
    if std::fs::metadata(manifest).ok()?.len() > MAX_MANIFEST_BYTES {
        return None;
    }
    let manifest: OllamaManifest = serde_json::from_slice(&std::fs::read(manifest).ok()?).ok()?;
    let layers: Vec<_> = manifest.layers.iter().filter(|layer| layer.media_type == WEIGHTS).collect();
    let first = layers.first()?;
    let path = place.join("blobs").join(blob(&first.digest)?);
    let bytes = std::fs::metadata(&path).map(|data| data.len());
    let fault = match (&bytes, layers.len()) {
        (Err(_), _) => Some("lacks its weights, or they cannot be read: ollama pull fetches them"),
        (_, 2..) => Some("is in several parts, which are named so that they cannot be read together"),
        _ => None,
    };
    let bytes = bytes.unwrap_or_default();
    Some(LocalCheckpoint { name, program: PROGRAM, path, format: "GGUF", bytes, fault })
}

/// The file name of a blob. `None` if the text is not a digest, because it could be a path.
fn blob(digest: &str) -> Option<PathBuf> {
    let hex = digest.strip_prefix("sha256:")?;
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| PathBuf::from(format!("sha256-{hex}")))
}
