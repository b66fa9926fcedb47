//! The interface to the store of recorded requests and answers. Knows no files and no SQL.

use headrace_domain::{ForgottenName, ProjectId, RequestId, UnixNanos};

use super::query::{ContentPage, ContentQuery};
use super::stored::StoredContent;
use crate::TraceError;
use crate::search::CallCursor;

/// Stores requests and answers. Calls block.
pub trait ContentStore: Send + Sync {
    /// Stores contents, all or nothing. A content whose id is stored already stays as it was.
    ///
    /// # Errors
    /// An error if the store cannot be written.
    fn append(&self, contents: &[StoredContent]) -> Result<(), TraceError>;

    /// Removes contents that have expired, or have no room, a bounded number at a time. Returns their number.
    ///
    /// # Errors
    /// An error if the store cannot be written.
    fn sweep(&self, now: UnixNanos) -> Result<u64, TraceError>;

    /// The content of one request, if it is stored.
    ///
    /// # Errors
    /// An error if the store cannot be read.
    fn get(&self, id: RequestId) -> Result<Option<StoredContent>, TraceError>;

    /// Searches contents, newest first. One search examines at most [`super::query::MAX_CONTENTS_EXAMINED`].
    ///
    /// # Errors
    /// An error if the store cannot be read.
    fn search(
        &self,
        query: &ContentQuery,
        after: Option<CallCursor>,
        limit: usize,
    ) -> Result<ContentPage, TraceError>;

    /// Removes everything of an end user: in one project, or in all. The bytes are overwritten. Returns the number of
    /// contents that were removed.
    ///
    /// # Errors
    /// An error if the store cannot be written.
    fn forget(&self, user: &ForgottenName, project: Option<&ProjectId>) -> Result<u64, TraceError>;
}
