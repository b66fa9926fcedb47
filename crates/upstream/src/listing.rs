//! Lists of models, in the formats of the different kinds of servers. Must not know a connection.

use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::kind::UpstreamKind;

/// Maximum number of models kept from one server, over all pages. Each becomes a worker with counters of its own, about
/// 11 KiB.
pub(crate) const MAX_MODELS: usize = 4096;
/// Maximum length of the name of a model, or of its owner, in bytes.
const MAX_NAME_BYTES: usize = 512;
/// Longest list entry that is parsed, in bytes. As a tree, it takes up to forty times that much memory.
const MAX_ENTRY_BYTES: usize = 64 << 10;

/// The models of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelListing {
    /// At most 4,096 models.
    pub models: Vec<ListedModel>,
    /// Number of entries that were dropped: those beyond the maximum, and those too long to describe a model.
    pub left_out: usize,
}

impl Deref for ModelListing {
    type Target = [ListedModel];

    fn deref(&self) -> &[ListedModel] {
        &self.models
    }
}

impl ModelListing {
    /// Adds the models of a page, up to the maximum.
    pub(crate) fn add(&mut self, page: Self) {
        let room = MAX_MODELS.saturating_sub(self.models.len());
        let beyond = page.models.len().saturating_sub(room);
        self.left_out = self.left_out.saturating_add(page.left_out).saturating_add(beyond);
        self.models.extend(page.models.into_iter().take(room));
    }
}

/// A model in a server's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedModel {
    /// Its name at the server.
    pub id: String,
    /// Context window in tokens, prompt and answer together, if the server states it.
    pub context_window: Option<u32>,
    /// Creation time in Unix seconds, if the server states it.
    pub created: Option<u64>,
    /// Who made or serves the model, if the server states it.
    pub owned_by: Option<String>,
}

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ListingPage {
    pub(crate) listing: ModelListing,
    /// The id after which the next page begins. `None` on the last page.
    pub(crate) next: Option<String>,
}

impl ListingPage {
    /// Parses a body.
    ///
    /// # Errors
    /// What the body is instead, and a hint at what may be wrong in the configuration.
    pub(crate) fn read(body: &ListBody<'_>, kind: UpstreamKind) -> Result<Self, (String, Option<String>)> {
        let data = body.data.filter(|data| data.get().starts_with('['));
        let Some(ListEntries(listing)) = data.and_then(|data| serde_json::from_str(data.get()).ok()) else {
            let what = "JSON, but no list of models (there is no `data`)".to_owned();
            return Err((what, Some(format!("is it of kind `{kind}`?"))));
        };
        if let Some(other) = listing.iter().find_map(|model| another_kind(kind, model)) {
            let what = format!("a list of models of a server of kind `{other}`");
            return Err((what, Some(format!("it is configured as `{kind}`"))));
        }
        // Only Anthropic's lists have this field.
        let pages = body.has_more.and_then(|more| serde_json::from_str::<bool>(more.get()).ok());
        if pages.is_some()
            && body.object.is_none()
            && !matches!(kind, UpstreamKind::Anthropic | UpstreamKind::OpenAi)
        {
            let what = "a list of models as Anthropic's servers write it".to_owned();
            return Err((what, Some(format!("it is configured as `{kind}`"))));
        }
        let last = || {
            let last = body.last_id.filter(|last| last.get().len() <= MAX_NAME_BYTES)?;
            serde_json::from_str::<String>(last.get()).ok()
        };
        Ok(Self {
            next: pages.filter(|more| *more && kind == UpstreamKind::Anthropic).and_then(|_| last()),
            listing,
        })
    }
}

/// The body of a list. Only the needed fields are parsed.
#[derive(Default, serde::Deserialize)]
pub(crate) struct ListBody<'a> {
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
    #[serde(default, borrow)]
    object: Option<&'a RawValue>,
    #[serde(default, borrow)]
    has_more: Option<&'a RawValue>,
    #[serde(default, borrow)]
    last_id: Option<&'a RawValue>,
}

/// The entries of a list. Each is dropped before the next one is parsed.
struct ListEntries(ModelListing);

impl<'de> Deserialize<'de> for ListEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = ListEntries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of models")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ListEntries, A::Error> {
                let mut listing = ModelListing::default();
                while let Some(entry) = seq.next_element::<&RawValue>()? {
                    if listing.models.len() >= MAX_MODELS || entry.get().len() > MAX_ENTRY_BYTES {
                        listing.left_out += 1;
                        continue;
                    }
                    let entry: Option<Value> = serde_json::from_str(entry.get()).ok();
                    listing.models.extend(entry.as_ref().and_then(model));
                }
                Ok(ListEntries(listing))
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

fn model(value: &Value) -> Option<ListedModel> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let id = text("id").filter(|id| !id.is_empty() && id.len() <= MAX_NAME_BYTES)?;
    Some(ListedModel {
        id: id.to_owned(),
        context_window: window(value),
        created: value.get("created").and_then(Value::as_u64),
        owned_by: text("owned_by").filter(|owner| owner.len() <= MAX_NAME_BYTES).map(str::to_owned),
    })
}

/// Returns the context window. vLLM, SGLang and Headrace state `max_model_len`, llama.cpp the model's training context,
/// Anthropic the longest prompt. Other servers use names of their own.
fn window(value: &Value) -> Option<u32> {
    let meta = value.get("meta");
    let in_meta = |name: &str| meta.and_then(|meta| meta.get(name));
    let windows = [
        value.get("max_model_len"),
        value.get("context_window"),
        value.get("context_length"),
        value.get("max_input_tokens"),
        in_meta("n_ctx"),
        in_meta("n_ctx_train"),
    ];
    let tokens = windows.into_iter().flatten().find_map(Value::as_u64).filter(|tokens| *tokens > 0)?;
    u32::try_from(tokens).ok()
}

/// Returns the kind that a model's owner reveals, if it is not the configured one. Any server that speaks OpenAI's
/// dialect may be configured as `openai`.
fn another_kind(kind: UpstreamKind, model: &ListedModel) -> Option<&'static str> {
    let engines = [UpstreamKind::Vllm, UpstreamKind::Sglang, UpstreamKind::LlamaCpp];
    let owner = model.owned_by.as_deref()?;
    let betrayed = engines.into_iter().find(|engine| engine.name() == owner)?;
    (engines.contains(&kind) && betrayed != kind).then_some(betrayed.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, kind: UpstreamKind) -> Result<ListingPage, (String, Option<String>)> {
        ListingPage::read(&serde_json::from_str(body).unwrap(), kind)
    }

    #[test]
    fn every_kind_tells_its_windows() {
        for (kind, card, window) in [
            (UpstreamKind::Vllm, r#"{"id":"m","owned_by":"vllm","max_model_len":1024}"#, Some(1024)),
            (UpstreamKind::Headrace, r#"{"id":"m","owned_by":"me","max_model_len":64}"#, Some(64)),
            (
                UpstreamKind::LlamaCpp,
                r#"{"id":"m","owned_by":"llamacpp","meta":{"n_ctx_train":4096}}"#,
                Some(4096),
            ),
            (UpstreamKind::LlamaCpp, r#"{"id":"m","meta":{"n_ctx_train":4096,"n_ctx":512}}"#, Some(512)),
            (UpstreamKind::OpenAi, r#"{"id":"m","context_length":131072,"created":7}"#, Some(131_072)),
            (UpstreamKind::OpenAi, r#"{"id":"m"}"#, None),
            (UpstreamKind::OpenAi, r#"{"id":"m","max_model_len":0}"#, None),
            (UpstreamKind::OpenAi, r#"{"id":"m","max_model_len":5000000000}"#, None),
            (
                UpstreamKind::Anthropic,
                r#"{"id":"m","type":"model","max_input_tokens":200000}"#,
                Some(200_000),
            ),
        ] {
            let page = read(&format!(r#"{{"data":[{card},{{"id":""}},7]}}"#), kind).unwrap();
            let [model] = page.listing.models.as_slice() else { panic!("{page:?}") };
            assert_eq!((model.id.as_str(), model.context_window), ("m", window), "{card}");
            assert_eq!(page.next, None);
        }
    }

    #[test]
    fn lists_of_another_kind_are_told() {
        let vllm = r#"{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}"#;
        let anthropic = r#"{"data":[{"id":"c"}],"has_more":true,"last_id":"c"}"#;
        assert!(read(vllm, UpstreamKind::OpenAi).is_ok());
        assert!(read(vllm, UpstreamKind::Sglang).unwrap_err().0.contains("kind `vllm`"));
        assert!(read(anthropic, UpstreamKind::Vllm).unwrap_err().0.contains("Anthropic"));
        assert_eq!(read(anthropic, UpstreamKind::Anthropic).unwrap().next.as_deref(), Some("c"));
        assert!(read(r#"{"models":[]}"#, UpstreamKind::OpenAi).unwrap_err().0.contains("no list of models"));
    }

    #[test]
    fn a_list_without_end_is_kept_up_to_a_bound_and_what_is_left_out_is_counted() {
        let ids = |count: usize| {
            let ids: Vec<String> = (0..count).map(|id| format!(r#"{{"id":"m{id}"}}"#)).collect();
            format!(r#"{{"data":[{}]}}"#, ids.join(","))
        };
        let page = read(&ids(MAX_MODELS + 1), UpstreamKind::OpenAi).unwrap();
        assert_eq!((page.listing.len(), page.listing.left_out), (MAX_MODELS, 1));
        let mut listing = page.listing;
        listing.add(read(&ids(3), UpstreamKind::OpenAi).unwrap().listing);
        assert_eq!((listing.len(), listing.left_out), (MAX_MODELS, 4));
        let long = format!(r#"{{"data":[{{"id":"a","x":"{}"}},{{"id":"b"}}]}}"#, "x".repeat(MAX_ENTRY_BYTES));
        let page = read(&long, UpstreamKind::OpenAi).unwrap();
        assert_eq!((page.listing.len(), page.listing.left_out), (1, 1));
        assert_eq!(page.listing[0].id, "b");
    }
}
