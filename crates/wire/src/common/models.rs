//! The list of models, in each dialect's shape. Does not know how models are loaded or priced.

use bytes::BytesMut;
use headrace_domain::rfc3339::Rfc3339;
use headrace_domain::{Code, Dialect, NanoDollarsPerMillion, UnixNanos};

use crate::fault::BadRequest;
use crate::json::writer::{list, raw, value};

/// A model as `GET /v1/models` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCard {
    /// The name by which callers request the model.
    pub id: String,
    /// Time of creation, in Unix seconds.
    pub created: u64,
    /// The maker or the provider of the model.
    pub owned_by: String,
    /// Tokens of prompt and answer together. `None` if the model's server has not reported it.
    pub context_window: Option<u32>,
    /// The most tokens of one answer, if that is less than the context window.
    pub max_output_tokens: Option<u32>,
    /// The endpoints that serve the model, as paths behind `/v1/`. Empty if the model's server has not reported them.
    pub endpoints: &'static [&'static str],
    /// The number of elements in a vector that the model makes of a text.
    pub dimensions: Option<u32>,
    /// The time from which the model should not be used for new work.
    pub deprecated: Option<UnixNanos>,
    /// The time from which the model is no longer available.
    pub retires: Option<UnixNanos>,
    /// The model to use instead.
    pub successor: Option<String>,
    /// The current price of the model's tokens. `None` if the model has no price today.
    pub pricing: Option<ModelPricing>,
}

/// Prices of a model in its ordinary class of service, as `pricing` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelPricing {
    /// The price of a computed prompt token.
    pub input: NanoDollarsPerMillion,
    /// The price of a prompt token from the prefix cache.
    pub cached_input: NanoDollarsPerMillion,
    /// The price of a generated token.
    pub output: NanoDollarsPerMillion,
}

/// Models per page if the caller names no number. Anthropic's default.
const USUAL_LIMIT: usize = 20;
/// The most models per page.
const MAX_LIMIT: usize = 1_000;

/// The part of the list that a caller asks for, in Anthropic's terms. OpenAI's dialect has no pages, and shows all
/// models.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelsPage {
    limit: usize,
    after: Option<String>,
    before: Option<String>,
}

impl ModelsPage {
    /// Reads the page from the fields of a query. All other fields are ignored.
    ///
    /// # Errors
    /// Fails if the limit is not a number from 1 to 1000, or if both ends are given.
    pub fn of(query: &[(String, String)]) -> Result<Self, BadRequest> {
        let field = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        let bad = |param: &str, code, message: &str| BadRequest {
            param: Some(param.to_owned()),
            code,
            message: format!("`{param}`: {message}"),
        };
        let limit = match field("limit").map(|text| text.parse()) {
            None => USUAL_LIMIT,
            Some(Ok(limit)) if (1..=MAX_LIMIT).contains(&limit) => limit,
            Some(_) => {
                return Err(bad("limit", Code::InvalidValue, "it must be a whole number from 1 to 1000"));
            }
        };
        let page = Self { limit, after: field("after_id"), before: field("before_id") };
        if page.after.is_some() && page.before.is_some() {
            return Err(bad("before_id", Code::InvalidValue, "send it or `after_id`"));
        }
        Ok(page)
    }

    /// Returns the part of the list on this page, and whether more models follow in its direction. If the end is not in
    /// the list, the page is empty.
    fn of_list<'m>(&self, models: &'m [ModelCard]) -> (&'m [ModelCard], bool) {
        let place = |id: &String| models.iter().position(|model| model.id == *id);
        if let Some(before) = &self.before {
            let side = place(before).and_then(|at| models.get(..at)).unwrap_or_default();
            let from = side.len().saturating_sub(self.limit);
            return (side.get(from..).unwrap_or_default(), from > 0);
        }
        let side = match &self.after {
            None => models,
            Some(after) => place(after).and_then(|at| models.get(at + 1..)).unwrap_or_default(),
        };
        (side.get(..self.limit).unwrap_or(side), side.len() > self.limit)
    }
}

/// The body of `GET /v1/models`: all models in OpenAI's dialect, and a page in Anthropic's.
pub fn models_body(models: &[ModelCard], dialect: Dialect, page: &ModelsPage, now: UnixNanos) -> Vec<u8> {
    let (models, has_more) = if dialect == Dialect::OpenAi { (models, false) } else { page.of_list(models) };
    let mut out = BytesMut::with_capacity(64 + models.len() * 192);
    raw(&mut out, if dialect == Dialect::OpenAi { "{\"object\":\"list\",\"data\":[" } else { "{\"data\":[" });
    list(&mut out, models, |out, model| write_model(out, model, dialect, now));
    raw(&mut out, "]");
    if dialect == Dialect::Anthropic {
        raw(&mut out, ",\"has_more\":");
        value(&mut out, &has_more);
        raw(&mut out, ",\"first_id\":");
        value(&mut out, &models.first().map(|model| &model.id));
        raw(&mut out, ",\"last_id\":");
        value(&mut out, &models.last().map(|model| &model.id));
    }
    raw(&mut out, "}");
    out.to_vec()
}

/// The body of `GET /v1/models/ID`.
pub fn model_body(model: &ModelCard, dialect: Dialect, now: UnixNanos) -> Vec<u8> {
    let mut out = BytesMut::with_capacity(192);
    write_model(&mut out, model, dialect, now);
    out.to_vec()
}

fn write_model(out: &mut BytesMut, model: &ModelCard, dialect: Dialect, now: UnixNanos) {
    raw(out, "{\"id\":");
    value(out, &model.id);
    match dialect {
        Dialect::OpenAi => {
            raw(out, ",\"object\":\"model\",\"created\":");
            value(out, &model.created);
            raw(out, ",\"owned_by\":");
            value(out, &model.owned_by);
            // vLLM's name for the same number, which its benchmark tools read.
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
            write_lifecycle(out, model, now);
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
    if !model.endpoints.is_empty() {
        raw(out, ",\"endpoints\":");
        value(out, &model.endpoints);
    }
    if let Some(width) = model.dimensions {
        raw(out, ",\"dimensions\":");
        value(out, &width);
    }
    if let Some(pricing) = &model.pricing {
        write_pricing(out, pricing);
    }
    // Mistral's names for the retirement and the successor.
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

/// Writes prices in OpenRouter's shape: text, in dollars per token.
/// Source: <https://openrouter.ai/docs/api-reference/list-available-models>.
fn write_pricing(out: &mut BytesMut, pricing: &ModelPricing) {
    let ModelPricing { input, cached_input, output } = pricing;
    raw(out, ",\"pricing\":{\"prompt\":");
    value(out, &per_token(*input));
    raw(out, ",\"completion\":");
    value(out, &per_token(*output));
    raw(out, ",\"input_cache_read\":");
    value(out, &per_token(*cached_input));
    raw(out, "}");
}

/// The price in dollars per token, exact. A price per million tokens has nine decimals, so the price per token has
/// fifteen.
fn per_token(price: NanoDollarsPerMillion) -> String {
    const UNIT: i64 = 1_000_000_000_000_000;
    let (whole, fraction) = (price.get() / UNIT, price.get() % UNIT);
    let text = format!("{whole}.{fraction:015}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Writes the lifecycle of a model, and its limits under Anthropic's names.
fn write_lifecycle(out: &mut BytesMut, model: &ModelCard, now: UnixNanos) {
    let since = model.deprecated.or(model.retires);
    let lifecycle = match (model.retires, since) {
        (Some(retires), _) if retires <= now => "retired",
        (Some(_), Some(since)) if since <= now => "deprecated",
        // The retirement is announced, and no other date of deprecation is set. Anthropic calls such a model
        // deprecated.
        (Some(_), _) if model.deprecated.is_none() => "deprecated",
        _ => "active",
    };
    let date = |time: Option<UnixNanos>| time.map(|time| Rfc3339(time).to_string());
    let ends = lifecycle != "active";
    raw(out, ",\"lifecycle\":");
    value(out, lifecycle);
    raw(out, ",\"deprecated_at\":");
    value(out, &date(model.deprecated.filter(|_| ends)));
    raw(out, ",\"retires_at\":");
    value(out, &date(model.retires.filter(|_| ends)));
    raw(out, ",\"max_input_tokens\":");
    value(out, &model.context_window);
    raw(out, ",\"max_tokens\":");
    value(out, &model.max_output_tokens.or(model.context_window));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of all models.
    const ALL: ModelsPage = ModelsPage { limit: MAX_LIMIT, after: None, before: None };
    const NOW: UnixNanos = UnixNanos::new(1_750_000_000_000_000_000);

    #[test]
    fn prices_are_exact_dollars_for_one_token() {
        let rows = [
            (0, "0"),
            (1, "0.000000000000001"),
            (100_000_000, "0.0000001"),
            (3_000_000_000, "0.000003"),
            (2_000_000_000_000_000, "2"),
            (i64::MAX, "9223.372036854775807"),
        ];
        for (price, expected) in rows {
            assert_eq!(per_token(NanoDollarsPerMillion::new(price).unwrap()), expected);
        }
    }

    #[test]
    fn golden() {
        let model = ModelCard {
            id: "demo".into(),
            created: 1_700_000_000,
            owned_by: "headrace".into(),
            context_window: Some(2048),
            max_output_tokens: None,
            endpoints: &[],
            dimensions: None,
            deprecated: None,
            retires: None,
            successor: None,
            pricing: None,
        };
        let models = [
            model.clone(),
            ModelCard {
                id: "b".into(),
                max_output_tokens: Some(9),
                endpoints: &["embeddings"],
                dimensions: Some(384),
                ..model
            },
        ];
        assert_eq!(
            String::from_utf8(models_body(&models, Dialect::OpenAi, &ALL, NOW)).unwrap(),
            concat!(
                r#"{"object":"list","data":[{"id":"demo","object":"model","created":1700000000,"owned_by":"headrace","#,
                r#""max_model_len":2048,"context_window":2048},{"id":"b","object":"model","created":1700000000,"#,
                r#""owned_by":"headrace","max_model_len":2048,"context_window":2048,"max_output_tokens":9,"#,
                r#""endpoints":["embeddings"],"dimensions":384}]}"#
            )
        );
        let retires = Some(UnixNanos::new(1_801_353_600_000_000_000));
        let ends = ModelCard { retires, successor: Some("next".into()), ..models[0].clone() };
        assert_eq!(
            String::from_utf8(model_body(&ends, Dialect::OpenAi, NOW)).unwrap(),
            concat!(
                r#"{"id":"demo","object":"model","created":1700000000,"owned_by":"headrace","max_model_len":2048,"#,
                r#""context_window":2048,"deprecation":"2027-01-31T00:00:00Z","deprecation_replacement_model":"next"}"#
            )
        );
        assert_eq!(
            String::from_utf8(models_body(&models[..1], Dialect::Anthropic, &ALL, NOW)).unwrap(),
            concat!(
                r#"{"data":[{"id":"demo","type":"model","display_name":"demo","created_at":"2023-11-14T22:13:20Z","#,
                r#""lifecycle":"active","deprecated_at":null,"retires_at":null,"max_input_tokens":2048,"max_tokens":2048,"#,
                r#""context_window":2048}],"has_more":false,"first_id":"demo","last_id":"demo"}"#
            )
        );
    }

    #[test]
    fn a_model_is_deprecated_before_it_retires() {
        let model = ModelCard {
            id: "a".into(),
            created: 0,
            owned_by: String::new(),
            context_window: None,
            max_output_tokens: None,
            endpoints: &[],
            dimensions: None,
            deprecated: None,
            retires: None,
            successor: None,
            pricing: None,
        };
        let at = |seconds: u64| Some(UnixNanos::new(seconds * 1_000_000_000));
        for (deprecated, retires, expected) in [
            (None, None, "active"),
            (None, at(2_000_000_000), "deprecated"),
            (at(1_900_000_000), at(2_000_000_000), "active"),
            (at(1_700_000_000), at(2_000_000_000), "deprecated"),
            (at(1_600_000_000), at(1_700_000_000), "retired"),
        ] {
            let card = ModelCard { deprecated, retires, ..model.clone() };
            let body: serde_json::Value =
                serde_json::from_slice(&model_body(&card, Dialect::Anthropic, NOW)).unwrap();
            assert_eq!(body["lifecycle"], expected);
            assert_eq!(body["retires_at"].is_null(), expected == "active");
        }
    }

    #[test]
    fn pages_go_through_the_list_in_either_direction() {
        let card = |id: usize| ModelCard {
            id: format!("m{id:02}"),
            created: 0,
            owned_by: String::new(),
            context_window: None,
            max_output_tokens: None,
            endpoints: &[],
            dimensions: None,
            deprecated: None,
            retires: None,
            successor: None,
            pricing: None,
        };
        let models: Vec<ModelCard> = (0..25).map(card).collect();
        let page = |query: &[(&str, &str)]| {
            let query: Vec<_> = query.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let page = ModelsPage::of(&query).unwrap();
            let body = models_body(&models, Dialect::Anthropic, &page, NOW);
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            let text = |key: &str| body[key].as_str().unwrap_or("-").to_owned();
            (
                body["data"].as_array().unwrap().len(),
                text("first_id"),
                text("last_id"),
                body["has_more"] == true,
            )
        };
        let told =
            |count: usize, first: &str, last: &str, more| (count, first.to_owned(), last.to_owned(), more);
        assert_eq!(page(&[("beta", "true")]), told(20, "m00", "m19", true));
        assert_eq!(page(&[("limit", "1000")]), told(25, "m00", "m24", false));
        assert_eq!(page(&[("after_id", "m19")]), told(5, "m20", "m24", false));
        assert_eq!(page(&[("limit", "3"), ("after_id", "m01")]), told(3, "m02", "m04", true));
        assert_eq!(page(&[("limit", "3"), ("before_id", "m05")]), told(3, "m02", "m04", true));
        assert_eq!(page(&[("limit", "9"), ("before_id", "m02")]), told(2, "m00", "m01", false));
        assert_eq!(page(&[("after_id", "no-such")]), told(0, "-", "-", false));
        for (key, wrong) in [("limit", "0"), ("limit", "1001"), ("limit", "x")] {
            let query = [(key.to_owned(), wrong.to_owned())];
            assert_eq!(ModelsPage::of(&query).unwrap_err().param.as_deref(), Some(key));
        }
        let both = ["after_id", "before_id"].map(|key| (key.to_owned(), "m01".to_owned()));
        assert_eq!(ModelsPage::of(&both).unwrap_err().param.as_deref(), Some("before_id"));
    }
}
