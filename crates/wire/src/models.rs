//! The list of models, in each dialect's shape. Knows not how models are loaded or priced.

use bytes::BytesMut;
use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{Dialect, UnixNanos};

use crate::json_out::{list, raw, value};

/// A model as `GET /v1/models` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCard {
    /// The name to ask for.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// Who made or serves it.
    pub owned_by: String,
    /// Tokens of prompt and answer together; `None`: whoever serves it has not said.
    pub context_window: Option<u32>,
    /// Most tokens of one answer, where that is less than the context window.
    pub max_output_tokens: Option<u32>,
    /// From when on it is no more.
    pub retires: Option<UnixNanos>,
    /// What is to be used instead.
    pub successor: Option<String>,
}

/// The body of `GET /v1/models`.
pub fn models_body(models: &[ModelCard], dialect: Dialect) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(64 + models.len() * 192);
    raw(&mut out, if dialect == Dialect::OpenAi { "{\"object\":\"list\",\"data\":[" } else { "{\"data\":[" });
    list(&mut out, models, |out, model| write_model(out, model, dialect));
    raw(&mut out, "]");
    if dialect == Dialect::Anthropic {
        raw(&mut out, ",\"has_more\":false,\"first_id\":");
        value(&mut out, &models.first().map(|model| &model.id));
        raw(&mut out, ",\"last_id\":");
        value(&mut out, &models.last().map(|model| &model.id));
    }
    raw(&mut out, "}");
    out.to_vec()
}

/// The body of `GET /v1/models/ID`.
pub fn model_body(model: &ModelCard, dialect: Dialect) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(192);
    write_model(&mut out, model, dialect);
    out.to_vec()
}

fn write_model(out: &mut BytesMut, model: &ModelCard, dialect: Dialect) {
    raw(out, "{\"id\":");
    value(out, &model.id);
    match dialect {
        Dialect::OpenAi => {
            raw(out, ",\"object\":\"model\",\"created\":");
            value(out, &model.created);
            raw(out, ",\"owned_by\":");
            value(out, &model.owned_by);
            // vLLM's name for the same number; its benchmark tools read it.
            if let Some(window) = model.context_window {
                raw(out, ",\"max_model_len\":");
                value(out, &window);
            }
        }
        Dialect::Anthropic => {
            raw(out, ",\"type\":\"model\",\"display_name\":");
            value(out, &model.id);
            raw(out, ",\"created_at\":");
            let created = UnixNanos::new(model.created.saturating_mul(1_000_000_000));
            value(out, &Rfc3339(created).to_string());
        }
    }
    if let Some(window) = model.context_window {
        raw(out, ",\"context_window\":");
        value(out, &window);
    }
    if let Some(max) = model.max_output_tokens {
        raw(out, ",\"max_output_tokens\":");
        value(out, &max);
    }
    // Mistral's names for the same.
    if let Some(retires) = model.retires {
        raw(out, ",\"deprecation\":");
        value(out, &Rfc3339(retires).to_string());
    }
    if let Some(successor) = &model.successor {
        raw(out, ",\"deprecation_replacement_model\":");
        value(out, successor);
    }
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden() {
        let model = ModelCard {
            id: "demo".into(),
            created: 1_700_000_000,
            owned_by: "headrace".into(),
            context_window: Some(2048),
            max_output_tokens: None,
            retires: None,
            successor: None,
        };
        let models = [model.clone(), ModelCard { id: "b".into(), max_output_tokens: Some(9), ..model }];
        assert_eq!(
            String::from_utf8(models_body(&models, Dialect::OpenAi)).unwrap(),
            concat!(
                r#"{"object":"list","data":[{"id":"demo","object":"model","created":1700000000,"owned_by":"headrace","#,
                r#""max_model_len":2048,"context_window":2048},{"id":"b","object":"model","created":1700000000,"#,
                r#""owned_by":"headrace","max_model_len":2048,"context_window":2048,"max_output_tokens":9}]}"#
            )
        );
        let retires = Some(UnixNanos::new(1_801_353_600_000_000_000));
        let ends = ModelCard { retires, successor: Some("next".into()), ..models[0].clone() };
        assert_eq!(
            String::from_utf8(model_body(&ends, Dialect::OpenAi)).unwrap(),
            concat!(
                r#"{"id":"demo","object":"model","created":1700000000,"owned_by":"headrace","max_model_len":2048,"#,
                r#""context_window":2048,"deprecation":"2027-01-31T00:00:00Z","deprecation_replacement_model":"next"}"#
            )
        );
        assert_eq!(
            String::from_utf8(models_body(&models[..1], Dialect::Anthropic)).unwrap(),
            concat!(
                r#"{"data":[{"id":"demo","type":"model","display_name":"demo","created_at":"2023-11-14T22:13:20Z","#,
                r#""context_window":2048}],"has_more":false,"first_id":"demo","last_id":"demo"}"#
            )
        );
    }
}
