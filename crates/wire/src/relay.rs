//! Relayed calls and their answers: reads bodies, edits them and translates them into another dialect.
//! Pure, like the whole crate. Knows no upstream, no model and no connection.

mod events;
mod failure;
mod reply;
mod request;

pub use events::{EventSplitter, SplitEvent};
pub use failure::{FailureClass, UpstreamFailure, failure};
pub use reply::{
    EventFacts, EventKind, FaultKind, KnownUsage, ReplyFault, ReplyReader, ReportedUsage, concealed,
    concealed_class, concealed_usage, end_of_stream,
};
pub(crate) use request::DECIDED_HERE;
pub use request::{
    ALLOWABLE, BodyEdits, GEO, ResponseState, SoFar, TIER, beginning, can_resume, edited, extras_of_betas,
    first_media, form_asked, model_named, opening, place_of, response_state, resumed, skim, skim_question,
    texts, translated, user_named,
};
pub(crate) use request::{ObjectWriter, array, object};
