//! A search for calls and a sum of usage: their filters, and the page of calls. Must not know which gateways are asked.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use crate::page::{is_limit, rows};
use crate::problem::ApiProblem;

/// Defines a query whose fields are optional texts, with a method `named` that returns the fields that are set.
macro_rules! query {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Default, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub(crate) struct $name {
            $($(#[$field_doc])* $field: Option<String>,)*
        }

        impl $name {
            pub(crate) fn named(self) -> Vec<(&'static str, String)> {
                [$((stringify!($field), self.$field)),*]
                    .into_iter()
                    .filter_map(|(name, value)| Some((name, value?)))
                    .collect()
            }
        }
    };
}

query! {
    /// Filters and groups for usage.
    UsageQuery {
        /// Groups, separated by commas: `org`, `project`, `key`, `model`, `upstream`, `user`, `tag`.
        by,
        /// `hour`, `day` or `month`.
        interval,
        /// Only calls from this time on.
        from,
        /// Only calls before this time.
        to,
        org,
        project,
    }
}

query! {
    /// Filters for calls.
    Search {
        /// Only calls from this time on: a time, a date, or an age (`2h`).
        from,
        /// Only calls before this time.
        to,
        /// The organisation that paid.
        org,
        project,
        key,
        /// The end user that the client named.
        user,
        /// A label of the call's `metadata`, as `NAME=VALUE`.
        label,
        /// The client's address, or its network (`203.0.113.0/24`, `2001:db8:7::/48`).
        address,
        /// The model that served the call, or that the client requested.
        model,
        /// The upstream that was called.
        upstream,
        /// `completed`, `refused`, `cancelled` or `failed`.
        outcome,
        /// The stage that refused or failed the call, or that took most of its time.
        stage,
        /// Only calls that took the server longer than this, in milliseconds.
        slower_than_ms,
        /// Only calls that cost more than this, in dollars.
        dearer_than,
        /// Text in the code, the rule or the message of a refusal, failure or cancellation.
        text,
        /// What content rules decided about the request or the answer: `any`, `blocked`, `redacted`, `flagged`,
        /// `dry_run` or `no_verdict`.
        moderation,
        /// The name of a content rule that matched the request or the answer.
        content_rule,
        /// Text in the recorded request or answer. For the roles that may read contents.
        content,
        /// The maximum number of rows: 1 to 500.
        limit,
        /// The cursor: the `next` of the previous page.
        cursor,
    }
}

pub(crate) use query;

/// A search with its page.
pub(crate) struct SearchAsk {
    /// Filters by name.
    pub(crate) named: Vec<(&'static str, String)>,
    pub(crate) cursor: Option<String>,
    /// Maximum number of rows.
    pub(crate) limit: usize,
}

impl SearchAsk {
    /// The search as another gateway parses it, from its own cursor on.
    pub(crate) fn body(&self, cursor: Option<&str>) -> Value {
        let filters =
            self.named.iter().map(|(name, value)| ((*name).to_owned(), Value::from(value.as_str())));
        let mut fields: serde_json::Map<String, Value> = filters.collect();
        fields.insert("limit".to_owned(), self.limit.to_string().into());
        fields.insert("cursor".to_owned(), cursor.into());
        fields.into()
    }
}

impl Search {
    /// Separates the page from the filters.
    ///
    /// # Errors
    /// If `limit` is no number of rows.
    pub(crate) fn ask(self) -> Result<SearchAsk, ApiProblem> {
        let Self { limit, cursor, .. } = &self;
        let limit = limit.as_deref().map(|limit| limit.parse().ok().filter(|rows| is_limit(*rows)));
        let limit = match limit {
            Some(None) => return Err(ApiProblem::form(Some("limit"), "this is no number from 1 to 500")),
            Some(limit) => rows(limit),
            None => rows(None),
        };
        let cursor = cursor.clone();
        let mut named = self.named();
        named.retain(|(name, _)| !matches!(*name, "limit" | "cursor"));
        Ok(SearchAsk { named, cursor, limit })
    }
}
