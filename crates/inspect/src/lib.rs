//! Shows what a model sees: the prompt that its template and tokenizer make of a conversation, token by token. Also
//! checks whether the files of a checkpoint agree with each other. Reports are serializable data, and a separate module
//! draws them for a terminal. Must not know requests, keys, prices, engines or the users of a report.

mod doctor;
mod draw;
mod finding;
mod prompt_report;
mod token;
mod words;

pub use doctor::diagnose;
pub use draw::{DrawOptions, draw_prompt, draw_tokens, printable};
pub use finding::{Diagnosis, Examined, Facts, Finding, Severity};
pub use prompt_report::{PromptReport, PromptReportError, SeenPart, Spelled, prompt_report};
pub use token::{SeenToken, TokenKind, TokenList, token_list};
pub use words::{Words, WordsError, call_notations};
