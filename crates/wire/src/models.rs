//! The list of models, in each dialect's shape. Knows not how models are loaded or priced.

use bytes::BytesMut;
use headrace_domain::Dialect;

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
    /// Tokens of prompt and answer together.
    pub context_window: u32,
    /// Most tokens of one answer, where that is less than the context window.
    pub max_output_tokens: Option<u32>,
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
            raw(out, ",\"max_model_len\":");
            value(out, &model.context_window);
        }
        Dialect::Anthropic => {
            raw(out, ",\"type\":\"model\",\"display_name\":");
            value(out, &model.id);
            raw(out, ",\"created_at\":");
            value(out, &rfc3339(model.created));
        }
    }
    raw(out, ",\"context_window\":");
    value(out, &model.context_window);
    if let Some(max) = model.max_output_tokens {
        raw(out, ",\"max_output_tokens\":");
        value(out, &max);
    }
    raw(out, "}");
}

/// Unix seconds as `YYYY-MM-DDTHH:MM:SSZ` (days to civil date: Howard Hinnant, `chrono`-compatible algorithms).
fn rfc3339(seconds: u64) -> String {
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Counted from 0000-03-01, so that leap days come last in a year; eras have 400 years.
    let shifted = day + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
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
            context_window: 2048,
            max_output_tokens: None,
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
        assert_eq!(
            String::from_utf8(models_body(&models[..1], Dialect::Anthropic)).unwrap(),
            concat!(
                r#"{"data":[{"id":"demo","type":"model","display_name":"demo","created_at":"2023-11-14T22:13:20Z","#,
                r#""context_window":2048}],"has_more":false,"first_id":"demo","last_id":"demo"}"#
            )
        );
    }

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_102_444_800, "2100-01-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
