//! Shows operators what served models see of prompts, with the same tokenizer assets that calls use. Must not know who
//! asks.

use std::sync::{Arc, Weak};

use headrace_admin::AdminError;
use headrace_admin_http::{AskedIn, PromptInspector, RenderAsk, TokenizeAsk};
use headrace_catalog::{Backend, ServedModel};
use headrace_checkpoint::ModelRefusal;
use headrace_domain::{AdminCode, Clock, Endpoint, ModelName, SystemClock};
use headrace_gateway::Gateway;
use headrace_inspect::{Words, token_list};
use headrace_ledger::prices::{PriceList, Quote};
use headrace_prompt::ReplyStyle;
use headrace_wire::WireLimits;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::found_model::FoundModel;
use crate::prompt_reports::{self, RenderReport};
use crate::reload::ConfigReloader;

/// Maximum number of tokens that are listed individually. A longer prompt is counted completely, and its beginning is
/// listed.
const MOST_TOKENS_LISTED: usize = 20_000;

/// Answers operators' questions about prompts.
pub(crate) struct PromptViews {
    gateway: Weak<Gateway>,
    reloader: Arc<ConfigReloader>,
    limits: WireLimits,
}

impl PromptViews {
    pub(crate) fn new(gateway: &Arc<Gateway>, reloader: &Arc<ConfigReloader>) -> Self {
        let limits = gateway.wire_limits().clone();
        Self { gateway: Arc::downgrade(gateway), reloader: Arc::clone(reloader), limits }
    }

    /// Finds a served model by its own name.
    fn served(&self, name: &str) -> Result<Arc<ServedModel>, AdminError> {
        let gateway = self.gateway.upgrade();
        let catalog = gateway.map(|gateway| gateway.catalog());
        let found = catalog.and_then(|all| all.models().find(|model| model.name.as_str() == name).cloned());
        found.ok_or_else(|| unknown(name))
    }

    fn quote(&self, name: &ModelName) -> Option<Quote> {
        let prices = PriceList::from_config(&self.reloader.prices().ok()?).ok()?;
        prices.quote(name, SystemClock::new().now())
    }
}

impl PromptInspector for PromptViews {
    fn render(&self, model: &str, ask: RenderAsk) -> Result<Value, AdminError> {
        let served = self.served(model)?;
        let words = words(&served)?;
        let endpoint = match ask.dialect {
            AskedIn::Chat => Endpoint::ChatCompletions,
            AskedIn::Messages => Endpoint::Messages,
            AskedIn::Responses => Endpoint::Responses,
        };
        let order = served.policy.tools_order;
        let see = |body: Map<String, Value>, before| {
            let call = prompt_reports::read(endpoint, Value::Object(body), &self.limits)?;
            prompt_reports::seen(&words, order, &call, before)
        };
        let before = ask.after.map(|body| see(body, None)).transpose().map_err(refused)?;
        let mut prompt_report = see(ask.body, before.as_ref()).map_err(refused)?;
        let cost = prompt_reports::cost(self.quote(&served.name).as_ref(), &prompt_report);
        prompt_report.tokens.truncate(MOST_TOKENS_LISTED);
        let context = served.backend.context_window().and_then(|most| usize::try_from(most).ok());
        to_json(&RenderReport { model: model.to_owned(), context, cost, prompt_report })
    }

    fn tokenize(&self, model: &str, ask: TokenizeAsk) -> Result<Value, AdminError> {
        let served = self.served(model)?;
        let words = words(&served)?;
        let list = match (&ask.text, &ask.ids) {
            (Some(text), _) => token_list(&words.tokenizer, text, ask.parse_special, ask.add_special)
                .map_err(|error| error.to_string()),
            (None, ids) => prompt_reports::of_ids(&words, ids.as_deref().unwrap_or_default()),
        };
        let mut list = list.map_err(refused)?;
        list.tokens.truncate(MOST_TOKENS_LISTED);
        to_json(&list)
    }

    fn doctor(&self, model: &str) -> Result<Value, AdminError> {
        let served = self.served(model)?;
        let found = FoundModel::of_name(&self.reloader.config()?, &served.name).map_err(refused)?;
        to_json(&ExaminedModel { model, diagnosis: found.diagnose() })
    }
}

#[derive(Serialize)]
struct ExaminedModel<'a> {
    model: &'a str,
    #[serde(flatten)]
    diagnosis: headrace_inspect::Diagnosis,
}

/// The tokenizer assets that a model is served with.
fn words(model: &ServedModel) -> Result<Words, AdminError> {
    match &model.backend {
        Backend::Tokens(backend) => Ok(Words {
            tokenizer: Arc::clone(&backend.tokenizer),
            template: backend.template.clone(),
            replies: backend.replies,
        }),
        Backend::Vectors(backend) => {
            let tokenizer = Arc::clone(&backend.tokenizer);
            Ok(Words { tokenizer, template: None, replies: ReplyStyle::PLAIN })
        }
        Backend::Messages(_) => Err(AdminError {
            code: AdminCode::NoWords,
            message: format!(
                "`{}` is asked in messages: only its server has its template and tokenizer",
                model.name
            ),
            remedy: "Give `path` beside `targets` in the configuration".to_owned(),
        }),
    }
}

/// The error for a model that is not served.
pub(crate) fn unknown(name: &str) -> AdminError {
    AdminError {
        code: AdminCode::UnknownModel,
        message: format!("no model `{name}` is served"),
        remedy: "GET /admin/v1/models lists those that are".to_owned(),
    }
}

/// The error for a prompt or model that cannot be shown.
pub(crate) fn refused(message: String) -> AdminError {
    AdminError { code: AdminCode::Refused, message, remedy: String::new() }
}

/// The error for a model whose files are refused.
pub(crate) fn refused_files(refusal: ModelRefusal) -> AdminError {
    AdminError { code: AdminCode::Refused, message: refusal.message, remedy: refusal.way_out }
}

fn to_json(report: &impl Serialize) -> Result<Value, AdminError> {
    serde_json::to_value(report).map_err(|error| refused(error.to_string()))
}
