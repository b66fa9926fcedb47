//! The program's own data, for operators: settings, prices, served models, holds, and sums over ledger and traces. Must
//! not know who asks.

use std::sync::{Arc, Weak};

use headrace_admin::AdminError;
use headrace_admin_http::{
    LedgerCheck, ModelPrices, Money, OpenHold, ServedModel, ServerAdmin, SettingInForce, StoredCheckpoint,
    VerifyFinding,
};
use headrace_call_api::CallService;
use headrace_catalog::{Backend, InputKinds};
use headrace_config::fields::FIELDS;
use headrace_config::sections::is_live;
use headrace_config::stored::{FoundCheckpoint, LocalCheckpoint, ModelFolders};
use headrace_domain::{AdminCode, NanoDollars, UnixNanos};
use headrace_gateway::Gateway;
use headrace_ledger::LedgerAdmin;
use headrace_ledger::prices::PriceConfig;
use headrace_rollout::ModelRoute;
use headrace_store::StorageReader;
use headrace_trace::{MarginBy, MarginReport, TraceReader, shadow_pairs};
use serde_json::Value;

use crate::model_facts;
use crate::prompts;
use crate::reload::ConfigReloader;

/// Maximum number of shadow copies that are compared: a few megabytes of records.
const MOST_COPIES: usize = 20_000;

/// Answers operators' questions about the server.
pub(crate) struct AdminData {
    gateway: Weak<Gateway>,
    ledger: Arc<dyn LedgerAdmin>,
    reloader: Arc<ConfigReloader>,
    stored: StorageReader,
}

impl AdminData {
    pub(crate) fn new(
        gateway: &Arc<Gateway>,
        ledger: Arc<dyn LedgerAdmin>,
        reloader: &Arc<ConfigReloader>,
        stored: StorageReader,
    ) -> Self {
        let (gateway, reloader) = (Arc::downgrade(gateway), Arc::clone(reloader));
        Self { gateway, ledger, reloader, stored }
    }

    fn traces(&self) -> Result<Arc<dyn TraceReader>, AdminError> {
        self.stored.traces().map_err(unreadable)
    }
}

impl ServerAdmin for AdminData {
    fn models(&self) -> Vec<ServedModel> {
        let Some(gateway) = self.gateway.upgrade() else { return Vec::new() };
        let catalog = gateway.catalog();
        let leads = |route: &ModelRoute, name: &str| route.models().all(|model| model.as_str() == name);
        let views = catalog.models().map(|model| ServedModel {
            name: model.name.to_string(),
            lane: match &model.backend {
                Backend::Tokens(_) => "tokens",
                Backend::Vectors(_) => "texts",
                Backend::Messages(_) => "messages",
            },
            context_window: model.backend.context_window(),
            default_max_tokens: match &model.backend {
                Backend::Vectors(_) => None,
                Backend::Tokens(_) | Backend::Messages(_) => {
                    Some(model.default_max_tokens.unwrap_or_else(|| gateway.default_max_tokens()))
                }
            },
            input: input(&model.backend),
            endpoints: model.backend.endpoints().to_vec(),
            aliases: catalog
                .routes()
                .filter(|(_, route)| leads(route, model.name.as_str()))
                .map(|(alias, _)| alias.to_string())
                .collect(),
            not_ready: gateway.not_ready(Some(model.name.as_str())),
        });
        views.collect()
    }

    fn inspect(&self, model: &str) -> Result<Value, AdminError> {
        let config = self.reloader.config()?;
        if let Some(own) = config.models.iter().find(|own| own.name.as_str() == model) {
            return model_facts::to_json(own.path.as_deref(), own.arithmetic.quantize)
                .map_err(prompts::refused_files);
        }
        if config.relayed.iter().any(|relayed| relayed.name.as_str() == model) {
            let message = format!("`{model}` is served by another server: none of its files are here");
            return Err(AdminError::new(AdminCode::NoFiles, message, ""));
        }
        Err(prompts::unknown(model))
    }

    fn checkpoints(&self) -> Vec<StoredCheckpoint> {
        let told = |stored: LocalCheckpoint| StoredCheckpoint {
            name: stored.name,
            program: stored.program,
            format: stored.format,
            weight_bytes: stored.bytes,
            path: stored.path.display().to_string(),
            fault: stored.fault,
        };
        ModelFolders::of_process().list().into_iter().map(told).collect()
    }

    fn inspect_checkpoint(&self, name: &str) -> Result<Value, AdminError> {
        match ModelFolders::of_process().find(name) {
            FoundCheckpoint::One(stored) => {
                model_facts::to_json(Some(&stored.path), None).map_err(prompts::refused_files)
            }
            FoundCheckpoint::None(why) => {
                let remedy = "GET /admin/v1/checkpoints lists them";
                Err(AdminError::new(AdminCode::UnknownCheckpoint, why, remedy))
            }
        }
    }

    fn prices(&self) -> Result<Vec<ModelPrices>, AdminError> {
        Ok(self.reloader.prices()?.into_iter().map(prices).collect())
    }

    fn settings(&self) -> Result<Vec<SettingInForce>, AdminError> {
        let settings = self.reloader.settings()?;
        let shown = FIELDS.iter().map(|field| SettingInForce {
            name: field.path,
            value: settings.get(field.path).map(|setting| setting.written.clone()),
            origin: settings.origin(field.path).to_string(),
            what: field.doc,
            live: is_live(field.path),
        });
        Ok(shown.collect())
    }

    fn verify(&self) -> Result<LedgerCheck, AdminError> {
        let report = self.ledger.verify().map_err(|error| AdminError {
            code: AdminCode::LedgerUnavailable,
            message: error.to_string(),
            remedy: String::new(),
        })?;
        let found = report
            .findings
            .iter()
            .map(|found| VerifyFinding { row: found.sequence, what: found.what.to_string() });
        Ok(LedgerCheck {
            ok: report.ok(),
            rows: report.rows,
            transactions: report.transactions,
            snapshots: report.snapshots,
            finding_count: report.finding_count,
            findings: found.collect(),
        })
    }

    fn holds(&self) -> Vec<OpenHold> {
        let told = self.ledger.open_holds().into_iter().map(|held| {
            let (org, project) = (held.org.to_string(), held.project.to_string());
            OpenHold::new(held.hold.to_string(), org, project, held.amount, held.expires)
        });
        told.collect()
    }

    fn margin(&self, by: &str, from: Option<UnixNanos>, to: Option<UnixNanos>) -> Result<Value, AdminError> {
        let named = |name: &str| {
            let found = MarginBy::ALL.into_iter().find(|by| by.name() == name);
            found.ok_or_else(|| {
                let names = MarginBy::ALL.map(MarginBy::name).join(", ");
                invalid(format!("`by` is none of {names}, with commas between"))
            })
        };
        let by = by.split(',').map(str::trim).map(named).collect::<Result<Vec<_>, _>>()?;
        let (from, to) = (from.unwrap_or_default(), to.unwrap_or(UnixNanos::new(u64::MAX)));
        if from >= to {
            return Err(invalid("`from` must be before `to`".to_owned()));
        }
        let mut margin = MarginReport::new(by);
        self.traces()?.each(from, to, &mut |record| margin.add(record)).map_err(unreadable)?;
        Ok(margin.json())
    }

    fn shadow(&self, hours: u32) -> Result<Value, AdminError> {
        let ago = u64::from(hours).saturating_mul(3_600_000_000_000);
        let since = UnixNanos::new(self.ledger.time().get().saturating_sub(ago));
        let records = self.traces()?.shadows(MOST_COPIES, since).map_err(unreadable)?;
        serde_json::to_value(shadow_pairs(&records)).map_err(|error| invalid(error.to_string()))
    }
}

/// The kinds of input that a model takes. `None` if only its upstream knows.
fn input(backend: &Backend) -> Option<Vec<&'static str>> {
    let kinds = match backend {
        Backend::Tokens(_) | Backend::Vectors(_) => InputKinds::default(),
        Backend::Messages(messages) => messages.inputs?,
    };
    let beside = InputKinds::ALL.into_iter().filter(|kind| kinds.takes(*kind)).map(|kind| kind.name());
    Some(std::iter::once("text").chain(beside).collect())
}

fn unreadable(error: headrace_trace::TraceError) -> AdminError {
    AdminError { code: AdminCode::StoreFailed, message: error.to_string(), remedy: String::new() }
}

fn invalid(message: String) -> AdminError {
    AdminError { code: AdminCode::Invalid, message, remedy: String::new() }
}

fn prices(of: PriceConfig) -> ModelPrices {
    let money = |price: Option<i64>| price.map(|price| Money::from(NanoDollars::new(price)));
    ModelPrices {
        model: of.model.to_string(),
        from: of.from,
        tier: of.tier.map(|tier| tier.name().to_owned()),
        holder_tier: of.holder_tier.map(String::from),
        above_prompt_tokens: of.above,
        input: money(of.input),
        cached_input: money(of.cached_input),
        cache_write: money(of.cache_write),
        cache_write_1h: money(of.cache_write_1h),
        output: money(of.output),
        reasoning: money(of.reasoning),
    }
}
