//! Commands about recorded requests and answers, scores, datasets and forgotten users as serializable data. Contains no
//! decisions.

use headrace_domain::{ProjectId, RequestId};
use headrace_trace::{CallDataset, CallScore, RecordName, ScoreValue};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A command about contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "act", rename_all = "snake_case", deny_unknown_fields)]
pub enum ContentAct {
    /// Returns the recorded request and answer of a call, with its scores.
    Show {
        /// The call.
        id: RequestId,
    },
    /// Returns a page of contents, newest first.
    Search {
        /// Filters by name, as in [`headrace_trace::ContentQuery::NAMES`].
        filters: Vec<(String, String)>,
        /// The cursor of the page before. `None` for the newest contents.
        #[serde(default)]
        after: Option<String>,
        /// Maximum number of contents: 1 to 500.
        limit: usize,
    },
    /// Writes the audit row of a search for contents that the command line makes in the files itself.
    NoteSearch {
        /// Filters by name, as in [`headrace_trace::CallQuery::set`].
        filters: Vec<(String, String)>,
    },
    /// Returns the scores of a call.
    Scores {
        /// The call.
        id: RequestId,
    },
    /// Gives a call a score, in place of the one of the same name.
    Score {
        /// The call.
        id: RequestId,
        /// The name of the score.
        name: RecordName,
        /// The value.
        value: ScoreValue,
        /// A remark. Empty if there is none.
        #[serde(default)]
        comment: String,
    },
    /// Creates a dataset from recorded requests and answers. It is limited to an organisation if the filters name one.
    CreateDataset {
        /// The dataset's name.
        name: RecordName,
        /// Filters by name.
        filters: Vec<(String, String)>,
        /// Maximum number of items. The newest contents are taken.
        limit: usize,
    },
    /// Lists all datasets.
    ListDatasets,
    /// Returns a page of the items of a dataset.
    ShowDataset {
        /// The dataset.
        name: RecordName,
        /// The number of the last item of the page before. 0 for the first page.
        #[serde(default)]
        after: u64,
        /// Maximum number of items: 1 to 500.
        limit: usize,
    },
    /// Removes a dataset.
    RemoveDataset {
        /// The dataset.
        name: RecordName,
    },
    /// Removes everything that names a user from all stores.
    Forget {
        /// The user, as callers name it, or the id of an account.
        user: String,
        /// Only in this project. `None` for everywhere.
        #[serde(default)]
        project: Option<ProjectId>,
    },
}

/// The reply to a command about contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ContentReply {
    /// The content of a call, and its scores.
    Content {
        /// The content. `None` if none is recorded.
        content: Option<Value>,
        /// The scores, by name.
        scores: Vec<CallScore>,
    },
    /// Contents, or items of a dataset.
    Page {
        /// The contents. Items of a dataset have their `number`.
        contents: Vec<Value>,
        /// The cursor of the next page, or the number of the last item. `None` if there are no more.
        next: Option<String>,
    },
    /// The search is in the audit log.
    SearchNoted,
    /// The scores of a call, by name.
    Scores {
        /// The scores.
        scores: Vec<CallScore>,
    },
    /// The call has a score.
    Scored {
        /// The score.
        score: CallScore,
    },
    /// Datasets, by name.
    Datasets {
        /// The datasets.
        datasets: Vec<CallDataset>,
    },
    /// A dataset was created.
    DatasetCreated {
        /// The dataset.
        dataset: CallDataset,
    },
    /// A dataset was removed.
    DatasetRemoved {
        /// Its name.
        name: RecordName,
    },
    /// A user was forgotten.
    Forgotten {
        /// What was done in each store, in order.
        stores: Vec<ForgottenStore>,
    },
}

/// What forgetting a user did in one store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenStore {
    /// The store, such as `traces`, or the name of another gateway.
    pub store: String,
    /// Number of records that were removed or changed.
    pub records: u64,
    /// Why something may be left in it. `None` if nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}
