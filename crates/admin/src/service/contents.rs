//! Recorded requests and answers: show, search, score, and datasets. Must not know how they are stored.

use std::sync::Arc;

use headrace_domain::{AdminCode, ProjectId, RequestId, UnixNanos};
use headrace_trace::{
    CallCursor, CallDataset, CallScore, ContentArchive, ContentQuery, MAX_DATASET_ITEMS, RecordName,
    StoredContent, TraceError,
};
use serde_json::{Value, json};

use super::AdminService;
use crate::command::AdminReply;
use crate::content_act::{ContentAct, ContentReply, ForgottenStore};
use crate::error::AdminError;

/// Maximum contents of a page.
const MAX_PAGE: usize = 500;
/// Maximum bytes of a page, as far as the size of a content is known beforehand. The control socket takes 64 MiB.
const MAX_PAGE_BYTES: usize = 24 << 20;
/// Maximum bytes of the items of a dataset.
const MAX_DATASET_BYTES: usize = 1 << 30;
/// Contents in memory at once while the items of a dataset are chosen.
const CHOSEN_AT_ONCE: usize = 64;

/// Removes a user from the stores that this service does not have: what was done in each.
pub type ForgetSource = Box<dyn Fn(&str, Option<&ProjectId>) -> Vec<ForgottenStore> + Send + Sync>;

/// The recorded requests and answers of a server.
pub struct ContentAccess {
    /// Their store.
    pub archive: Arc<dyn ContentArchive>,
    /// Waits until contents of ended calls are stored, for some seconds at most.
    pub flush: Box<dyn Fn() + Send + Sync>,
    /// Removes a user from all stores.
    pub forget: ForgetSource,
}

impl AdminService {
    /// Adds the recorded requests and answers.
    pub fn with_contents(self, contents: ContentAccess) -> Self {
        Self { contents: Some(contents), ..self }
    }

    pub(super) fn contents(
        &self,
        act: ContentAct,
        actor: &str,
        now: UnixNanos,
    ) -> Result<AdminReply, AdminError> {
        let none = || AdminError::new(AdminCode::NotRunning, "this process has no recorded requests", "");
        let access = self.contents.as_ref().ok_or_else(none)?;
        (access.flush)();
        let archive = access.archive.as_ref();
        let reply = match act {
            ContentAct::Show { id } => self.show_content(archive, id, actor, now)?,
            ContentAct::Search { filters, after, limit } => {
                let query = query(&filters, now)?;
                self.note("content.search", "contents", words(&filters), actor, now)?;
                search(archive, &query, after.as_deref(), limit)?
            }
            ContentAct::NoteSearch { filters } => {
                self.note("content.search", "contents", words(&filters), actor, now)?;
                ContentReply::SearchNoted
            }
            ContentAct::Scores { id } => ContentReply::Scores { scores: archive.scores(id).map_err(failed)? },
            ContentAct::Score { id, name, value, comment } => {
                let score = CallScore { id, name, value, comment, actor: actor.to_owned(), at: now };
                score.check().map_err(|why| AdminError::new(AdminCode::Invalid, why, ""))?;
                archive.put_score(&score).map_err(failed)?;
                ContentReply::Scored { score }
            }
            ContentAct::CreateDataset { name, filters, limit } => {
                self.create_dataset(archive, name, (&filters, limit), (actor, now))?
            }
            ContentAct::ListDatasets => {
                ContentReply::Datasets { datasets: archive.datasets().map_err(failed)? }
            }
            ContentAct::ShowDataset { name, after, limit } => {
                let limit = limit.clamp(1, MAX_PAGE);
                let items = archive.dataset_items(&name, after, limit).map_err(failed)?;
                let items = items.ok_or_else(|| unknown_dataset(&name))?;
                let detail = format!("items after {after}");
                self.note("dataset.read", name.as_str(), detail, actor, now)?;
                dataset_page(items, limit)
            }
            ContentAct::RemoveDataset { name } => {
                if !archive.remove_dataset(&name).map_err(failed)? {
                    return Err(unknown_dataset(&name));
                }
                self.note("dataset.remove", name.as_str(), String::new(), actor, now)?;
                ContentReply::DatasetRemoved { name }
            }
            ContentAct::Forget { user, project } => {
                let stores = (access.forget)(&user, project.as_ref());
                let records: u64 = stores.iter().map(|store| store.records).sum();
                let left = stores.iter().filter(|store| store.failed.is_some()).count();
                let place = project.as_ref().map_or_else(|| "all projects".to_owned(), ToString::to_string);
                // The row does not name the user: it can never be removed.
                let detail = format!("{records} records in {place}, {left} stores failed");
                self.note("user.forget", "a user", detail, actor, now)?;
                ContentReply::Forgotten { stores }
            }
        };
        Ok(AdminReply::Contents(reply))
    }

    /// The content of a call. Who reads it is noted first.
    fn show_content(
        &self,
        archive: &dyn ContentArchive,
        id: RequestId,
        actor: &str,
        now: UnixNanos,
    ) -> Result<ContentReply, AdminError> {
        let content = archive.get(id).map_err(failed)?.map(|content| content.json());
        if content.is_some() {
            self.note("content.read", &id.to_string(), String::new(), actor, now)?;
        }
        Ok(ContentReply::Content { content, scores: archive.scores(id).map_err(failed)? })
    }

    /// Creates a dataset from the newest contents that meet the filters.
    fn create_dataset(
        &self,
        archive: &dyn ContentArchive,
        name: RecordName,
        (filters, limit): (&[(String, String)], usize),
        (actor, now): (&str, UnixNanos),
    ) -> Result<ContentReply, AdminError> {
        let query = query(filters, now)?;
        let most = limit.clamp(1, usize::try_from(MAX_DATASET_ITEMS).unwrap_or(usize::MAX));
        let mut calls = chosen(archive, &query, most)?;
        if calls.is_empty() {
            let message = "no recorded request meets these filters";
            let remedy =
                "headrace projects records PROJECT --level full records requests and answers from then on";
            return Err(AdminError::new(AdminCode::NotFound, message, remedy));
        }
        // In the order in which the calls came.
        calls.reverse();
        let (org, from) = (query.org, words(filters));
        let dataset = CallDataset { name, org, from, actor: actor.to_owned(), created: now, items: 0 };
        let Some(items) = archive.create_dataset(&dataset, &calls).map_err(failed)? else {
            let message = format!("dataset `{}` exists already", dataset.name);
            return Err(AdminError::new(
                AdminCode::Exists,
                message,
                "choose another name, or delete it first",
            ));
        };
        let detail = format!("{items} items from {}", dataset.from);
        self.note("dataset.create", dataset.name.as_str(), detail, actor, now)?;
        Ok(ContentReply::DatasetCreated { dataset: CallDataset { items, ..dataset } })
    }
}

/// The newest calls whose contents meet a query, newest first.
///
/// # Errors
/// An error if their contents have more than [`MAX_DATASET_BYTES`] together, or the store cannot be read.
fn chosen(
    archive: &dyn ContentArchive,
    query: &ContentQuery,
    most: usize,
) -> Result<Vec<RequestId>, AdminError> {
    let (mut calls, mut after, mut bytes) = (Vec::new(), None, 0_usize);
    while calls.len() < most {
        let left = most.saturating_sub(calls.len()).min(CHOSEN_AT_ONCE);
        let page = archive.search(query, after, left).map_err(failed)?;
        for content in page.contents {
            bytes = bytes.saturating_add(content.stored_bytes());
            calls.push(content.id);
        }
        if bytes > MAX_DATASET_BYTES {
            let (count, most) = (calls.len(), MAX_DATASET_BYTES >> 20);
            let message = format!("the newest {count} of these contents have more than {most} MiB together");
            return Err(AdminError::new(AdminCode::Invalid, message, "set a lower limit, or more filters"));
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(calls)
}

fn query(filters: &[(String, String)], now: UnixNanos) -> Result<ContentQuery, AdminError> {
    let mut query = ContentQuery::default();
    for (name, value) in filters {
        query
            .set(name, value, now)
            .map_err(|why| AdminError::new(AdminCode::Invalid, format!("`{name}`: {why}"), ""))?;
    }
    Ok(query)
}

fn words(filters: &[(String, String)]) -> String {
    content_filter_words(filters.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// Filters in words, for lists and the audit log. Values that a caller can have chosen are not repeated: the log never
/// forgets them.
pub fn content_filter_words<'a>(filters: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let word = |(name, value): (&str, &str)| match name {
        "text" | "content" | "user" | "label" => format!("{name} …"),
        _ => format!("{name} {value}"),
    };
    let words: Vec<String> = filters.map(word).collect();
    if words.is_empty() { "all contents".to_owned() } else { words.join(", ") }
}

fn search(
    archive: &dyn ContentArchive,
    query: &ContentQuery,
    after: Option<&str>,
    limit: usize,
) -> Result<ContentReply, AdminError> {
    let bad = |_| AdminError::new(AdminCode::Invalid, "`after` is no `next` of a page", "");
    let mut after: Option<CallCursor> = after.map(|text| text.parse().map_err(bad)).transpose()?;
    let limit = limit.clamp(1, MAX_PAGE);
    let (mut contents, mut bytes) = (Vec::new(), 0_usize);
    loop {
        // Few at once, because their size is known only afterwards.
        let page =
            archive.search(query, after, limit.saturating_sub(contents.len()).min(8)).map_err(failed)?;
        for content in &page.contents {
            bytes = bytes.saturating_add(content.stored_bytes());
            contents.push(content.json());
        }
        after = page.next;
        let is_full = contents.len() >= limit || bytes >= MAX_PAGE_BYTES;
        if is_full || after.is_none() || page.searched_to.is_some() {
            return Ok(ContentReply::Page { contents, next: after.map(|next| next.to_string()) });
        }
    }
}

fn dataset_page(items: Vec<(u64, StoredContent)>, limit: usize) -> ContentReply {
    let (mut contents, mut bytes, mut last, all) = (Vec::new(), 0_usize, 0, items.len());
    for (number, item) in items {
        bytes = bytes.saturating_add(item.stored_bytes());
        let mut shown = item.json();
        if let Value::Object(fields) = &mut shown {
            fields.insert("number".to_owned(), json!(number));
        }
        contents.push(shown);
        last = number;
        if bytes >= MAX_PAGE_BYTES {
            break;
        }
    }
    let is_last = contents.len() == all && all < limit;
    ContentReply::Page { contents, next: (!is_last).then(|| last.to_string()) }
}

fn unknown_dataset(name: &RecordName) -> AdminError {
    AdminError::new(AdminCode::NotFound, format!("there is no dataset `{name}`"), "headrace datasets list")
}

fn failed(error: TraceError) -> AdminError {
    let code = match error {
        TraceError::TooMuch { .. } => AdminCode::Invalid,
        _ => AdminCode::StoreFailed,
    };
    AdminError::new(code, error.to_string(), "")
}
