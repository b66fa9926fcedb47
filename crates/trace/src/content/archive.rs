//! The interface to scores and datasets, which are stored beside the recorded requests and answers.

use headrace_domain::RequestId;

use super::dataset::CallDataset;
use super::score::{CallScore, RecordName};
use super::seam::ContentStore;
use super::stored::StoredContent;
use crate::TraceError;

/// Stores scores and datasets. Calls block.
pub trait ContentArchive: ContentStore {
    /// Stores a score in place of the one of the same name.
    ///
    /// # Errors
    /// An error if the store cannot be written.
    fn put_score(&self, score: &CallScore) -> Result<(), TraceError>;

    /// The scores of a call, by name.
    ///
    /// # Errors
    /// An error if the store cannot be read.
    fn scores(&self, id: RequestId) -> Result<Vec<CallScore>, TraceError>;

    /// Creates a dataset from copies of the contents of `calls`. Returns the number of items, which is smaller if contents
    /// are gone. `None` if there is a dataset of this name.
    ///
    /// # Errors
    /// [`TraceError::TooMuch`] if there are too many datasets or items. Another error if the store cannot be written.
    fn create_dataset(&self, dataset: &CallDataset, calls: &[RequestId]) -> Result<Option<u64>, TraceError>;

    /// All datasets, by name.
    ///
    /// # Errors
    /// An error if the store cannot be read.
    fn datasets(&self) -> Result<Vec<CallDataset>, TraceError>;

    /// The items of a dataset after the item number `after`, at most `limit`, with the numbers of the items. Numbers
    /// start at 1. `None` if there is no such dataset.
    ///
    /// # Errors
    /// An error if the store cannot be read.
    fn dataset_items(
        &self,
        name: &RecordName,
        after: u64,
        limit: usize,
    ) -> Result<Option<Vec<(u64, StoredContent)>>, TraceError>;

    /// Removes a dataset. Returns `false` if there is none of this name.
    ///
    /// # Errors
    /// An error if the store cannot be written.
    fn remove_dataset(&self, name: &RecordName) -> Result<bool, TraceError>;
}
