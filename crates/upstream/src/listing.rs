//! Lists of models, as servers of different kinds write them. Knows no connection.

use serde_json::Value;

use crate::kind::Kind;

/// More models of one server are not listed.
const MAX_MODELS: usize = 10_000;
/// The longest name of a model, in bytes.
const MAX_NAME_BYTES: usize = 512;

/// A model as its server lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedModel {
    /// Its name there.
    pub id: String,
    /// Prompt and answer together, in tokens, where the server says so.
    pub context_window: Option<u32>,
    /// Unix seconds, where the server says so.
    pub created: Option<u64>,
    /// Who made or serves it, where the server says so.
    pub owned_by: Option<String>,
}

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) models: Vec<ListedModel>,
    /// After which id the next page begins; `None`: this was the last.
    pub(crate) next: Option<String>,
}

impl Page {
    /// Reads a body.
    ///
    /// # Errors
    /// What came instead, and what may be wrong in the configuration.
    pub(crate) fn read(body: &Value, kind: Kind) -> Result<Self, (String, Option<String>)> {
        let Some(data) = body.get("data").and_then(Value::as_array) else {
            let what = "JSON, but no list of models (there is no `data`)".to_owned();
            return Err((what, Some(format!("is it of kind `{kind}`?"))));
        };
        let models: Vec<ListedModel> = data.iter().take(MAX_MODELS).filter_map(model).collect();
        if let Some(other) = models.iter().find_map(|model| another_kind(kind, model)) {
            let what = format!("a list of models of a server of kind `{other}`");
            return Err((what, Some(format!("it is configured as `{kind}`"))));
        }
        // Only Anthropic's lists have this.
        let pages = body.get("has_more").and_then(Value::as_bool);
        if pages.is_some() && body.get("object").is_none() && !matches!(kind, Kind::Anthropic | Kind::OpenAi)
        {
            let what = "a list of models as Anthropic's servers write it".to_owned();
            return Err((what, Some(format!("it is configured as `{kind}`"))));
        }
        let last = || body.get("last_id").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { next: pages.filter(|more| *more && kind == Kind::Anthropic).and_then(|_| last()), models })
    }
}

fn model(value: &Value) -> Option<ListedModel> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let id = text("id").filter(|id| !id.is_empty() && id.len() <= MAX_NAME_BYTES)?;
    Some(ListedModel {
        id: id.to_owned(),
        context_window: window(value),
        created: value.get("created").and_then(Value::as_u64),
        owned_by: text("owned_by").map(str::to_owned),
    })
}

/// vLLM, SGLang and Headrace say `max_model_len`, llama.cpp what its model was trained with, Anthropic how long a prompt may
/// be, and others have names of their own.
fn window(value: &Value) -> Option<u32> {
    let meta = value.get("meta");
    let in_meta = |name: &str| meta.and_then(|meta| meta.get(name));
    let told = [
        value.get("max_model_len"),
        value.get("context_window"),
        value.get("context_length"),
        value.get("max_input_tokens"),
        in_meta("n_ctx"),
        in_meta("n_ctx_train"),
    ];
    let tokens = told.into_iter().flatten().find_map(Value::as_u64).filter(|tokens| *tokens > 0)?;
    u32::try_from(tokens).ok()
}

/// The kind that a model's owner betrays, where it is not the configured one. Whoever speaks OpenAI's dialect may be
/// configured as `openai`.
fn another_kind(kind: Kind, model: &ListedModel) -> Option<&'static str> {
    let engines = [Kind::Vllm, Kind::Sglang, Kind::LlamaCpp];
    let owner = model.owned_by.as_deref()?;
    let betrayed = engines.into_iter().find(|engine| engine.name() == owner)?;
    (engines.contains(&kind) && betrayed != kind).then_some(betrayed.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, kind: Kind) -> Result<Page, (String, Option<String>)> {
        Page::read(&serde_json::from_str(body).unwrap(), kind)
    }

    #[test]
    fn every_kind_tells_its_windows() {
        for (kind, card, window) in [
            (Kind::Vllm, r#"{"id":"m","owned_by":"vllm","max_model_len":1024}"#, Some(1024)),
            (Kind::Headrace, r#"{"id":"m","owned_by":"me","max_model_len":64}"#, Some(64)),
            (Kind::LlamaCpp, r#"{"id":"m","owned_by":"llamacpp","meta":{"n_ctx_train":4096}}"#, Some(4096)),
            (Kind::LlamaCpp, r#"{"id":"m","meta":{"n_ctx_train":4096,"n_ctx":512}}"#, Some(512)),
            (Kind::OpenAi, r#"{"id":"m","context_length":131072,"created":7}"#, Some(131_072)),
            (Kind::OpenAi, r#"{"id":"m"}"#, None),
            (Kind::OpenAi, r#"{"id":"m","max_model_len":0}"#, None),
            (Kind::OpenAi, r#"{"id":"m","max_model_len":5000000000}"#, None),
            (Kind::Anthropic, r#"{"id":"m","type":"model","max_input_tokens":200000}"#, Some(200_000)),
        ] {
            let page = read(&format!(r#"{{"data":[{card},{{"id":""}},7]}}"#), kind).unwrap();
            let [model] = page.models.as_slice() else { panic!("{page:?}") };
            assert_eq!((model.id.as_str(), model.context_window), ("m", window), "{card}");
            assert_eq!(page.next, None);
        }
    }

    #[test]
    fn lists_of_another_kind_are_told() {
        let vllm = r#"{"object":"list","data":[{"id":"m","owned_by":"vllm"}]}"#;
        let anthropic = r#"{"data":[{"id":"c"}],"has_more":true,"last_id":"c"}"#;
        assert!(read(vllm, Kind::OpenAi).is_ok());
        assert!(read(vllm, Kind::Sglang).unwrap_err().0.contains("kind `vllm`"));
        assert!(read(anthropic, Kind::Vllm).unwrap_err().0.contains("Anthropic"));
        assert_eq!(read(anthropic, Kind::Anthropic).unwrap().next.as_deref(), Some("c"));
        assert!(read(r#"{"models":[]}"#, Kind::OpenAi).unwrap_err().0.contains("no list of models"));
    }
}
