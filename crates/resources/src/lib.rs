//! What clients store: responses and conversations, files, uploads and batches, with their paths and with the tasks
//! that run batches and background responses. Knows no SQL, no stage and no worker: calls run behind [`CallRunner`].

mod background;
mod batch_line;
mod batches;
mod conversations;
mod counts;
mod draft_writer;
mod file_batches;
mod files;
mod form;
mod history;
mod message_batches;
mod moderations;
mod object_query;
mod reads;
mod references;
mod requests;
mod resources;
mod response_records;
mod responses;
mod runner;
mod running_batches;
mod running_response;
mod socket_session;
mod stored_objects;
mod upload_claim;
mod uploads;

pub use background::{BackgroundCall, BackgroundResponse};
pub use batch_line::{BatchLine, PaidHold};
pub use references::{ReferencedBody, may_refer};
pub use requests::{check_entitled, dialect_of, takes_form};
pub use resources::{ResourceConfig, ResourceParts, StoredResources};
pub use response_records::StoredCall;
pub use runner::CallRunner;
pub use socket_session::SocketSession;
pub use upload_claim::UploadClaim;
