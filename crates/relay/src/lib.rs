//! Calls that are relayed to upstreams in messages, and their answers: reads bodies, edits them and translates them into
//! another dialect. Pure: no I/O, no clock, no HTTP types. Knows no upstream, no model and no connection.

mod events;
mod failure;
mod parameters;
mod reply;
mod request;

pub use events::{EventSplitter, SplitEvent};
pub use failure::{FailureClass, UpstreamFailure, failure};
pub use parameters::parameters_page;
pub use reply::{
    EventFacts, EventKind, FaultKind, KnownUsage, ReplyFault, ReplyReader, ReportedUsage, concealed,
    concealed_class, concealed_usage, end_of_stream,
};
pub use request::{
    ALLOWABLE, BodyEdits, BodyString, BodyStringForm, GEO, ResponseState, SoFar, TIER, as_chat, beginning,
    body_strings, can_resume, edited, extras_of_betas, first_media, form_asked, model_named, opening,
    place_of, reasoning_asked, response_state, resumed, skim, skim_question, texts, translated, user_named,
    with_strings,
};
