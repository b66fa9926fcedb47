//! Calls for operators: stored traces, explanations, usage, and the current state of the server. Must not know who
//! asks.

use std::sync::Arc;

use headrace_admin::{AdminError, ForgottenStore};
use headrace_admin_http::{CallRecords, CallView, Ended, FoundCall, UsageView};
use headrace_domain::{AdminCode, Clock, ProjectId, TraceRecord, UnixNanos};
use headrace_explain::{diff, explain_beside, why_cost};
use headrace_store::StorageReader;
use headrace_trace::{
    CacheQuery, CallQuery, TraceError, TraceReader, TraceRecorder, UsageQuery, decode_record, encode_record,
    operator_json, trace_name,
};
use headrace_wire::{named_request, named_trace};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;

use crate::contents::RecordedContents;
use crate::forget::UserForgetter;
use crate::key_names::KeyNames;
use crate::live_stats::LiveStats;
use crate::receipts::LiveReceipts;

/// Maximum number of calls that are shown as concurrent with one call.
const MOST_BESIDE: usize = 100;

/// Answers operators' questions about calls.
pub(crate) struct KnownCalls {
    live_stats: LiveStats,
    recorder: Arc<TraceRecorder>,
    /// Has a single connection, so simultaneous readers wait for each other.
    reader: Arc<dyn TraceReader>,
    contents: RecordedContents,
    forgetter: UserForgetter,
    clock: Arc<dyn Clock>,
    names: KeyNames,
    receipts: Arc<LiveReceipts>,
}

impl KnownCalls {
    /// Looks for calls in a server's stores. The traces are opened when they are first read.
    pub(crate) fn new(
        stored: &StorageReader,
        live_stats: &LiveStats,
        (recorder, contents): (&Arc<TraceRecorder>, &RecordedContents),
        forgetter: &UserForgetter,
        clock: &Arc<dyn Clock>,
        names: KeyNames,
        receipts: &Arc<LiveReceipts>,
    ) -> Self {
        let reader = stored.traces_when_read();
        let (live_stats, recorder, clock) = (live_stats.clone(), Arc::clone(recorder), Arc::clone(clock));
        let (contents, forgetter) = (contents.clone(), forgetter.clone());
        let receipts = Arc::clone(receipts);
        Self { live_stats, recorder, reader, contents, forgetter, clock, names, receipts }
    }

    /// Finds the record of a call: in memory right after its answer, later in the store.
    fn find(&self, id: &str) -> Result<Option<TraceRecord>, AdminError> {
        let own = named_request(id);
        if let Some(recent) = own.and_then(|own| self.recorder.recent(own)) {
            return Ok(Some(TraceRecord::clone(&recent)));
        }
        if let Some(stored) = own.map(|own| self.reader.get(own)).transpose().map_err(failed)?.flatten() {
            return Ok(Some(stored));
        }
        // An id that an upstream gave its answer, or a W3C trace id. A call of another server is found by its digits: the
        // call or worker job here that serves it has them as its trace id.
        let trace_id = named_trace(id).or_else(|| own.map(trace_name));
        if let Some(recent) =
            trace_id.as_ref().and_then(|trace_id| self.recorder.traced(trace_id).into_iter().next())
        {
            return Ok(Some(TraceRecord::clone(&recent)));
        }
        // Or the id that an upstream gave its answer.
        for name in [trace_id.as_deref(), Some(id.trim())].into_iter().flatten() {
            if let Some(stored) = self.reader.named(name).map_err(failed)?.into_iter().next() {
                return Ok(Some(stored));
            }
        }
        Ok(None)
    }

    /// A view of a call. `None` if the call has no such view.
    fn view(&self, record: &TraceRecord, what: CallView) -> Result<Option<Value>, AdminError> {
        Ok(match what {
            CallView::Trace => Some(self.names.added(operator_json(record))),
            CallView::Explain => {
                Some(to_json(&explain_beside(self.reader.as_ref(), record).map_err(failed)?)?)
            }
            CallView::Record => {
                let text = encode_record(record).map_err(failed)?;
                let record = serde_json::from_str(&text).map_err(|error| invalid(&error.to_string()))?;
                Some(record)
            }
            CallView::Content => {
                let content = self.contents.get(record.request_id).map_err(failed)?;
                content.map(|content| content.json())
            }
            CallView::Cost => Some(to_json(&why_cost(record))?),
            CallView::Receipt => {
                let receipt = self.receipts.receipt(record).map_err(|error| AdminError {
                    code: AdminCode::StoreFailed,
                    message: error.to_string(),
                    remedy: String::new(),
                })?;
                receipt.map(|receipt| receipt.json())
            }
            CallView::Beside => {
                let beside = self.reader.beside(record.request_id, MOST_BESIDE).map_err(failed)?;
                let beside = beside.unwrap_or_default();
                let rows: Vec<Value> = beside.iter().map(|row| self.names.added(row.json())).collect();
                Some(json!({ "data": rows, "next": null }))
            }
        })
    }

    /// Builds a query from its named parts.
    fn query<Q: Default>(
        &self,
        named: &[(&'static str, String)],
        set: impl Fn(&mut Q, &str, &str, UnixNanos) -> Result<(), String>,
    ) -> Result<Q, AdminError> {
        let (mut query, now) = (Q::default(), self.clock.now());
        for (name, value) in named {
            set(&mut query, name, value, now).map_err(|why| invalid(&format!("`{name}` {why}")))?;
        }
        Ok(query)
    }
}

impl CallRecords for KnownCalls {
    fn search(
        &self,
        named: &[(&'static str, String)],
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<Value, AdminError> {
        let query = self.query(named, CallQuery::set)?;
        let after = cursor.map(str::parse).transpose();
        let after = after.map_err(|_| invalid("`cursor` is no `next` of a page"))?;
        let page = match &query.content {
            Some(_) => self.contents.search(self.reader.as_ref(), &query, after, limit),
            None => self.reader.search(&query, after, limit),
        };
        let mut page = page.map_err(failed)?.json();
        self.names.add_to_rows(&mut page, "data");
        Ok(page)
    }

    fn call(&self, id: &str, what: CallView) -> Result<Option<FoundCall>, AdminError> {
        let Some(record) = self.find(id)? else { return Ok(None) };
        let view = self.view(&record, what)?;
        Ok(view.map(|view| FoundCall { id: record.request_id.to_string(), org: record.org.clone(), view }))
    }

    fn compare(&self, a: &Value, b: &Value) -> Result<Value, AdminError> {
        let read = |record: &Value| decode_record(&record.to_string()).map_err(failed);
        to_json(&diff(&read(a)?, &read(b)?))
    }

    fn usage(
        &self,
        named: &[(&'static str, String)],
        others: &[(String, Value)],
    ) -> Result<UsageView, AdminError> {
        let query = self.query(named, UsageQuery::set)?;
        let own = self.live_stats.usage.usage(&query).map_err(failed)?;
        let (others, unread) = own.read_others(others);
        let mut usage = own.over_gateways(&others).json();
        self.names.add_to_rows(&mut usage, "rows");
        Ok(UsageView { usage, unread })
    }

    fn statement(&self, project: &ProjectId, month: &str) -> Result<Value, AdminError> {
        let month = month.parse().map_err(|why: String| invalid(&format!("`month` {why}")))?;
        let statement = self.live_stats.usage.statement(project, month).map_err(failed)?;
        let statement = statement.ok_or_else(|| AdminError {
            code: AdminCode::UnknownProject,
            message: format!("the ledger knows no project `{project}`"),
            remedy: String::new(),
        })?;
        Ok(statement.json())
    }

    fn cache(&self, named: &[(&'static str, String)]) -> Result<Value, AdminError> {
        let query = self.query(named, CacheQuery::set)?;
        Ok(self.reader.cache(&query).map_err(failed)?.json())
    }

    fn forget(&self, user: &str, project: Option<&ProjectId>) -> Vec<ForgottenStore> {
        self.forgetter.forget_here(user, project)
    }

    fn now(&self) -> Value {
        self.live_stats.now().json()
    }

    fn history(&self) -> Value {
        self.live_stats.history.json()
    }

    fn ended(&self) -> Ended {
        let from = (self.live_stats.live.subscribe(), self.names.clone());
        Box::pin(futures_util::stream::unfold(from, |(mut rows, names)| async move {
            loop {
                match rows.recv().await {
                    Ok(row) => return Some((names.added(row.json()), (rows, names))),
                    // A reader that is too slow for every call skips the missed ones.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        }))
    }
}

fn to_json(what: &impl Serialize) -> Result<Value, AdminError> {
    serde_json::to_value(what).map_err(|error| AdminError {
        code: AdminCode::Internal,
        message: error.to_string(),
        remedy: String::new(),
    })
}

fn failed(error: TraceError) -> AdminError {
    let code = match error {
        TraceError::TooMuch { .. } => AdminCode::Invalid,
        _ => AdminCode::StoreFailed,
    };
    AdminError { code, message: error.to_string(), remedy: String::new() }
}

fn invalid(message: &str) -> AdminError {
    AdminError { code: AdminCode::Invalid, message: message.to_owned(), remedy: String::new() }
}
