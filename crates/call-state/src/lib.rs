//! What the calls of a gateway share and take: memory, gates for long bodies, slots, holds that are kept alive, the
//! buffer of an answer, and rejections. Knows no stage, no prompt and no store.

mod answer;
mod answer_origins;
mod body_memory;
pub mod delivery;
mod generated_ids;
mod hold_keeper;
mod in_flight;
mod memory;
mod org_slots;
mod rates;
mod recorded_copy;
mod rejection;
mod render_gate;
mod sent_hash;

pub use answer::{Answer, AnswerBody, AnsweredRequest, KEPT_ANSWER_BYTES, keep_memory};
pub use answer_origins::{AnswerOrigin, AnswerOrigins};
pub use body_memory::{CALL_BYTES, RequestMemory, TEXT_COPIES, reading_bytes, scanning_bytes, tree_bytes};
pub use delivery::Delivery;
pub use generated_ids::{AnswerRecorder, AnswerStart, GeneratedIdCache, MOST_ANSWER_TOKENS, ReusedPrompt};
pub use hold_keeper::{HoldKeeper, HoldKeeperParts, KeptCallHandle};
pub use in_flight::{InFlightCall, InFlightSlot, InFlightTable};
pub use memory::{CallMemory, MemoryBounds, NoMemory, NotEncoded, TokenizerMemory, mib};
pub use org_slots::{OrgSlot, OrgSlots};
pub use rates::rate_headers;
pub use recorded_copy::RecordedCopy;
pub use rejection::{Rejection, RejectionFacts, unauthenticated};
pub use render_gate::{NoTurn, RenderGate, RenderPermit};
pub use sent_hash::{sent_by, sent_whole};
