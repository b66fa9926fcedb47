//! Objects that clients store: responses with their input and output, conversations, files, and batches of calls, and
//! the answers that are returned again. Each belongs to a project. To other projects it looks like an object that never
//! existed. Traits and plain logic: no SQL, no HTTP, no clock.

mod answers;
mod archive;
mod batches;
mod files;
mod id;
mod items;
mod memory;
mod page;
mod record;
mod response_writer;
mod store;

pub use answers::{ANSWER_PART_BYTES, AnswerRecord, AnswerStore, MemoryAnswers, fair_share};
pub use archive::{AnswerArchive, ArchivedLine, FileArchive, ObjectArchive};
pub use batches::{
    BatchCounts, BatchFault, BatchKind, BatchRecord, BatchState, BatchStatus, BatchStore, BatchTimes,
    LineEnd, LineRecord, LineResult,
};
pub use files::{
    FileDraft, FileLimits, FileRecord, FileStore, OUTPUT_PURPOSE, PartRecord, UploadFault, UploadRecord,
    UploadStatus,
};
pub use id::fresh_id;
pub use items::{input_items, items_with_ids, list_of};
pub use memory::MemoryObjects;
pub use page::{ItemPage, ListOrder, MOST_ITEMS, MOST_ROWS, PageAsk, page};
pub use record::{ConversationRecord, ItemRecord, ResponseRecord, ResponseStatus};
pub use response_writer::{MAX_RESPONSE_GROUP, PendingResponse, ResponseSink, ResponseWriter};
pub use store::{HistoryOf, ObjectError, ObjectLimits, ObjectStore, OnStored, StoredLookup};
