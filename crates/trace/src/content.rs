//! Recorded requests and answers: what is stored of them, the store's interface, and the recorder that writes them out
//! of band. Must not know who may read them.

pub(crate) mod answer;
pub(crate) mod archive;
pub(crate) mod dataset;
pub(crate) mod query;
pub(crate) mod recorder;
pub(crate) mod redaction;
pub(crate) mod score;
pub(crate) mod seam;
pub(crate) mod stored;
