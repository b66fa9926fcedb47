//! The search for recorded requests and answers: the query and its page. Must not know how they are stored.

use headrace_domain::{EndUser, OrgId, ProjectId, UnixNanos};

use super::stored::StoredContent;
use crate::search::{CallCursor, CallQuery};

/// Maximum contents that one search examines. A search that reaches it reports where it ended.
pub const MAX_CONTENTS_EXAMINED: usize = 5_000;

/// Selects contents that meet all criteria that are set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContentQuery {
    /// The call started at this time or later.
    pub since: Option<UnixNanos>,
    /// The call started before this time.
    pub until: Option<UnixNanos>,
    /// The organisation that paid.
    pub org: Option<OrgId>,
    /// The project.
    pub project: Option<ProjectId>,
    /// The end user that the caller named.
    pub user: Option<EndUser>,
    /// The model that handled the request.
    pub model: Option<String>,
    /// Text in the request or in the answer, without regard to case.
    pub text: Option<String>,
}

impl ContentQuery {
    /// The part of a search for calls that is about contents.
    pub fn of(query: &CallQuery) -> Self {
        Self {
            since: query.since,
            until: query.until,
            org: query.org.clone(),
            project: query.project.clone(),
            user: query.user.clone(),
            model: None,
            text: query.content.clone(),
        }
    }

    /// The names of all filters.
    pub const NAMES: [&str; 7] = ["from", "to", "org", "project", "user", "model", "text"];

    /// Sets one of the [`ContentQuery::NAMES`] from its text.
    ///
    /// # Errors
    /// A message that says what the value must be, or that there is no such filter.
    pub fn set(&mut self, name: &str, value: &str, now: UnixNanos) -> Result<(), String> {
        let mut of_calls = CallQuery::default();
        match name {
            "model" => of_calls.set(name, value, now).map(|()| self.model = of_calls.model),
            "text" => of_calls.set(name, value, now).map(|()| self.text = of_calls.text),
            "from" => of_calls.set(name, value, now).map(|()| self.since = of_calls.since),
            "to" => of_calls.set(name, value, now).map(|()| self.until = of_calls.until),
            "org" => of_calls.set(name, value, now).map(|()| self.org = of_calls.org),
            "project" => of_calls.set(name, value, now).map(|()| self.project = of_calls.project),
            "user" => of_calls.set(name, value, now).map(|()| self.user = of_calls.user),
            _ => Err(format!("there is no such filter: there are {}", Self::NAMES.join(", "))),
        }
    }

    /// Whether the content meets all criteria. `lower` is the text in lower case.
    pub fn matches(&self, content: &StoredContent, lower: Option<&str>) -> bool {
        self.since.is_none_or(|since| content.started >= since)
            && self.until.is_none_or(|until| content.started < until)
            && (self.org.is_none() || self.org == content.org)
            && self.project.as_ref().is_none_or(|project| *project == content.project)
            && (self.user.is_none() || self.user == content.user)
            && (self.model.is_none() || self.model == content.model)
            && lower.is_none_or(|text| content.contains(text))
    }
}

/// A page of contents, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ContentPage {
    /// The contents.
    pub contents: Vec<StoredContent>,
    /// The cursor of the next page. `None` if there are no more contents.
    pub next: Option<CallCursor>,
    /// The time that the search reached, if it stopped at the bound on examined contents.
    pub searched_to: Option<UnixNanos>,
}
