//! Look-ups by a caller: models, and traces of its own requests. A look-up counts as a request. It takes no
//! concurrency slot and no money.

use std::sync::Arc;
use std::time::Duration;

use headrace_call_api::CallerInfo;
use headrace_call_state::{Answer, Rejection};
use headrace_catalog::{Catalog, RetirementNotice, ServedModel};
use headrace_domain::{CallOutcome, Code, Dialect, KeyId, ModelName, TokenClass, TraceRecord, UnixNanos};
use headrace_identity::Principal;
use headrace_wire::{
    ModelCard, ModelPricing, ModelsPage, model_body, models_body, named_request, named_trace,
};
use tokio::time::{Instant, sleep};

use crate::Gateway;
use crate::config::ReceiptUnavailable;
use crate::request_context::RequestContext;
use crate::stages::authorize::unknown_model_of;
use crate::stages::route::region_not_allowed;
use crate::state::{IdentifiedCaller, caller_scopes};

/// How long a look-up waits for the record of a call that has just ended.
const RECORD_WAIT: Duration = Duration::from_millis(500);
/// How often it checks whether the record is there.
const RECORD_LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) type Looked = Result<Answer, Rejection>;

/// An admitted look-up.
pub(crate) struct LookUp {
    subject: LookUpSubject,
    principal: Arc<Principal>,
    context: RequestContext,
}

/// What is looked up.
pub(crate) enum LookUpSubject {
    /// The models that the caller may use, by these query fields.
    ModelList { query: Vec<(String, String)> },
    /// The model with this name.
    Model { name: String },
    /// The trace of the request with this id.
    RequestTrace { id: String },
    /// The receipt of the request with this id.
    Receipt { id: String },
}

impl LookUp {
    /// Admits a look-up of an identified caller.
    pub(crate) fn admit(
        subject: LookUpSubject,
        (context, principal): IdentifiedCaller,
    ) -> Result<Self, Answer> {
        match principal {
            Ok(principal) => Ok(Self { subject, principal, context }),
            Err(why) => Err(why.answer(&context)),
        }
    }

    /// The key that the look-up is for.
    pub(crate) fn key(&self) -> &KeyId {
        &self.principal.key
    }
}

impl Gateway {
    /// Answers a look-up.
    pub(crate) async fn answer_look_up(&self, look_up: LookUp) -> Answer {
        let LookUp { subject, principal, context } = look_up;
        let looked = match subject {
            LookUpSubject::ModelList { query } => self.list_models(&principal, context.dialect, &query),
            LookUpSubject::Model { name } => self.show_model(&principal, context.dialect, &name),
            LookUpSubject::RequestTrace { id } => self.trace_of(&principal, &id).await,
            LookUpSubject::Receipt { id } => self.receipt_of(&principal, &id).await,
        };
        respond(&context, looked)
    }

    /// `GET /v1/models`: the models that the caller may use and that are offered within its residency.
    fn list_models(&self, principal: &Principal, dialect: Dialect, query: &[(String, String)]) -> Looked {
        let page = ModelsPage::of(query)?;
        let (catalog, now) = (self.catalog(), self.parts().clock.now());
        let mut cards: Vec<ModelCard> = catalog
            .names()
            .filter(|(name, _)| principal.models.allows(name.as_str()))
            .filter(|(name, _)| catalog.offers_within(name, &principal.regions))
            .map(|(name, model)| (name, model, catalog.notice(name, &model.name)))
            .filter(|(_, _, notice)| !notice.is_some_and(|(_, notice)| notice.is_over(now) && !notice.moves))
            .map(|(name, model, notice)| {
                card(name, model, notice.map(|(_, notice)| notice), pricing(&catalog, model, now))
            })
            .collect();
        cards.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(Answer::json(200, models_body(&cards, dialect, &page, now)))
    }

    /// `GET /v1/models/NAME`. A model that the caller may not use is answered like one that does not exist.
    fn show_model(&self, principal: &Principal, dialect: Dialect, name: &str) -> Looked {
        let found = ModelName::new(name).ok().filter(|_| principal.models.allows(name));
        let catalog = self.catalog();
        match found.and_then(|name| Some((catalog.resolve(&name)?, name))) {
            Some((_, name)) if !catalog.offers_within(&name, &principal.regions) => {
                Err(region_not_allowed(principal, &catalog, &name))
            }
            Some((model, name)) => match catalog.notice(&name, &model.name) {
                Some((ended, notice)) if notice.is_over(self.parts().clock.now()) && !notice.moves => {
                    Err(Rejection::retired(notice.refusal(ended)))
                }
                notice => {
                    let now = self.parts().clock.now();
                    let pricing = pricing(&catalog, model, now);
                    let card = card(&name, model, notice.map(|(_, notice)| notice), pricing);
                    Ok(Answer::json(200, model_body(&card, dialect, now)))
                }
            },
            None => Err(unknown_model_of(name, principal, &catalog)),
        }
    }

    /// `GET /v1/requests/ID`: the trace of a request, for its own project only. Foreign and missing ids answer alike.
    async fn trace_of(&self, principal: &Principal, name: &str) -> Looked {
        let Ok(_slot) = self.trace_slots().try_acquire() else { return Err(too_many_look_ups()) };
        let record = self.record_of(principal, name).await?;
        Ok(Answer::json(200, self.parts().records.json(&record)))
    }

    /// `GET /v1/receipts/ID`: the signed receipt of a request, for its own project only.
    async fn receipt_of(&self, principal: &Principal, name: &str) -> Looked {
        let Ok(_slot) = self.trace_slots().try_acquire() else { return Err(too_many_look_ups()) };
        let record = self.record_of(principal, name).await?;
        let is_refused = matches!(record.outcome, CallOutcome::Refused(_));
        let deadline = Instant::now() + RECORD_WAIT;
        let mut made = self.parts().records.receipt(Arc::clone(&record)).await;
        // The settlement of a call that has just ended is in the journal a moment later.
        while matches!(made, Ok(None)) && !is_refused && Instant::now() < deadline {
            sleep(RECORD_LOOK_EVERY).await;
            made = self.parts().records.receipt(Arc::clone(&record)).await;
        }
        match made {
            Ok(Some(receipt)) => Ok(Answer::json(200, receipt)),
            Ok(None) => Err(no_receipt()),
            Err(ReceiptUnavailable) => Err(Rejection::new(
                Code::LedgerUnavailable,
                "The ledger cannot be read now, so that the receipt cannot be made. Try again shortly.",
            )
            .retry_after(Duration::from_secs(1))),
        }
    }

    /// The record of a request of the caller's project.
    async fn record_of(&self, principal: &Principal, name: &str) -> Result<Arc<TraceRecord>, Rejection> {
        let Some(id) = named_request(name) else { return Err(unknown_request()) };
        let records = &self.parts().records;
        let own = |record: &Arc<TraceRecord>| {
            // A shadow copy belongs to the server.
            record.shadow_of.is_none()
                && record.org.as_ref() == Some(&principal.org)
                && record.project.as_ref() == Some(&principal.project)
        };
        let trace_id = named_trace(name);
        let recent = || {
            let of_trace = || records.recent_of_trace(trace_id.as_deref()?).into_iter().find(own);
            records.recent(id).filter(own).or_else(of_trace)
        };
        let deadline = Instant::now() + RECORD_WAIT;
        let mut found = recent();
        if found.is_none() {
            // The store is asked once. A record that it does not have yet appears in memory first.
            found = records.stored(id).await.filter(own);
        }
        if let (None, Some(trace_id)) = (&found, &trace_id) {
            found = records.stored_of_trace(trace_id.clone()).await.into_iter().find(own);
        }
        while found.is_none() && Instant::now() < deadline {
            sleep(RECORD_LOOK_EVERY).await;
            found = recent();
        }
        found.ok_or_else(unknown_request)
    }

    /// Identifies a caller, by its credentials unless it acts for a known principal, and counts the request. The
    /// request state provides the headers of the answer.
    pub(crate) fn identify(
        &self,
        caller: &CallerInfo,
        principal: Option<Arc<Principal>>,
        dialect: Dialect,
    ) -> IdentifiedCaller {
        let parts = self.parts();
        let found = principal.map_or_else(|| self.find_principal(&caller.credentials, caller.peer), Ok);
        let now = parts.clock.now();
        let context =
            RequestContext::open(Arc::clone(&parts.clock), now, parts.clock.monotonic_nanos(), dialect);
        let principal = match found {
            Ok(principal) => {
                let scopes = caller_scopes(&principal);
                match parts.limits.count(&scopes, now) {
                    Ok(()) => Ok(principal),
                    Err(refusal) => {
                        Err(Rejection::limited(refusal, &parts.limits.standing(&scopes, now), dialect, now))
                    }
                }
            }
            Err(rejection) => Err(rejection),
        };
        (context, principal)
    }
}

pub(crate) fn respond(context: &RequestContext, looked: Looked) -> Answer {
    match looked {
        Ok(answer) => answer.with_headers(context.id_headers()),
        Err(rejection) => rejection.answer(context),
    }
}

/// The prices of a model's tokens now, in the standard service class.
fn pricing(catalog: &Catalog, model: &ServedModel, now: UnixNanos) -> Option<ModelPricing> {
    let quote = catalog.prices().quote(&model.name, now)?;
    let price = |class| quote.usual().price(class);
    Some(ModelPricing {
        input: price(TokenClass::Input),
        cached_input: price(TokenClass::CachedInput),
        output: price(TokenClass::Output),
    })
}

fn card(
    name: &ModelName,
    model: &ServedModel,
    notice: Option<&RetirementNotice>,
    pricing: Option<ModelPricing>,
) -> ModelCard {
    ModelCard {
        id: name.to_string(),
        created: model.created_unix_s,
        owned_by: "headrace".to_owned(),
        context_window: model.backend.context_window(),
        max_output_tokens: None,
        endpoints: model.backend.endpoints(),
        dimensions: model.backend.vector_width(),
        deprecated: notice.and_then(|notice| notice.deprecated),
        retires: notice.map(|notice| notice.retires),
        successor: notice.and_then(|notice| notice.successor.as_ref()).map(ToString::to_string),
        pricing,
    }
}

fn unknown_request() -> Rejection {
    Rejection::new(
        Code::RequestNotFound,
        "There is no trace of this request for your project. Calls are traced, `GET`s are not; traces are kept for a \
         bounded time.",
    )
}

fn no_receipt() -> Rejection {
    Rejection::new(
        Code::ReceiptNotFound,
        "This request has no receipt: it was refused, failed before any work, or is not settled yet.",
    )
}

fn too_many_look_ups() -> Rejection {
    Rejection::new(Code::TooManyLookUps, "As many look-ups of traces run as may at once. Try again shortly.")
        .retry_after(Duration::from_secs(1))
}
