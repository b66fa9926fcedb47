//! All limits of the protocol, in one place and with units in their names.

use std::time::Duration;

/// The version of jobs and events in this program.
pub const PROTOCOL: u8 = 2;
/// Minimum length of a secret, in bytes.
pub const LEAST_SECRET_BYTES: usize = 32;
/// Lifetime of a ticket.
pub(crate) const TICKET_LIFE_S: u64 = 30;
/// Maximum difference between the clocks of both sides.
pub(crate) const CLOCK_SKEW_S: u64 = 30;
/// Maximum number of tickets that are remembered until they expire. Further ones are refused.
pub(crate) const MAX_TICKETS: usize = 1 << 19;
/// Maximum size of one frame of a stream, without its length field.
pub(crate) const MAX_FRAME_BYTES: usize = 1 << 20;
/// A frame is filled with scores up to this size.
pub(crate) const SCORES_FRAME_BYTES: usize = 64 << 10;
/// A chunk of a stream is filled with frames up to this size.
pub(crate) const CHUNK_BYTES: usize = 32 << 10;
/// Interval of heartbeats while a stream has no other frames.
pub const ALIVE_PERIOD: Duration = Duration::from_secs(1);
/// Maximum silence of a stream that is being read.
pub const SILENCE: Duration = Duration::from_secs(20);
/// Time without a read after which a stream's job is cancelled. Gateways give up on slow readers earlier.
pub(crate) const UNREAD: Duration = Duration::from_secs(60);
/// Maximum number of heartbeats per job.
pub(crate) const MAX_ALIVE_FRAMES: u32 = 1 << 18;
/// Maximum bytes of text per token id.
pub(crate) const MAX_TOKEN_BYTES: u64 = 4 << 10;
/// Maximum number of answers per job.
pub(crate) const MAX_CHOICES: u32 = 1 << 10;
/// Maximum length of a model's name, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 256;
/// Maximum number of stop strings per job. `MAX_STOP_BYTES` limits all of them together.
pub(crate) const MAX_STOPS: usize = 1 << 10;
pub(crate) const MAX_STOP_BYTES: usize = 256 << 10;
/// Maximum number of stop ids, and of ids with a bias, per job.
pub(crate) const MAX_IDS: usize = 1 << 16;
/// Maximum size of a form on the wire.
pub(crate) const MAX_FORM_BYTES: usize = 512 << 10;
/// Maximum number of prefixes to keep per prompt. Dialects allow four.
pub(crate) const MAX_PINS: usize = 8;
/// Maximum size of a job's appendix: its form and its options.
pub(crate) const MAX_BEHIND_BYTES: usize = MAX_FORM_BYTES + (1 << 10);
/// Maximum number of ids between the reasoning and the answer.
pub(crate) const MAX_BETWEEN: usize = 64;
/// Minimum and maximum of the event bytes that may wait unread at the worker.
pub(crate) const LEAST_UNREAD_BYTES: usize = 16 << 10;
pub(crate) const MOST_UNREAD_BYTES: usize = 1 << 20;
/// Maximum weight of a tenant.
pub(crate) const MAX_WEIGHT: u32 = 1 << 20;
/// Maximum numbers of sequences and tokens in a worker's report.
pub(crate) const MAX_SEQUENCES: u32 = 1 << 24;
pub(crate) const MAX_TOKENS: u64 = 1 << 40;
/// Maximum wait that is reported.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Maximum size of a worker's description of itself.
pub const MAX_ABOUT_BYTES: usize = 4 << 20;
/// Maximum number of models per worker.
pub(crate) const MAX_MODELS: usize = 1_000;
/// Maximum size of a model's tokenizer assets.
pub const MAX_WORDS_BYTES: usize = 128 << 20;
/// Maximum number of files in a model's tokenizer assets.
pub(crate) const MAX_WORDS_FILES: usize = 16;
/// Maximum size of a refusal.
pub const MAX_REFUSAL_BYTES: usize = 16 << 10;
/// Maximum number of characters of the other side's text that are repeated.
pub(crate) const SAID_CHARS: usize = 300;
/// Minimum time between two log messages about requests without a valid ticket, in nanoseconds.
pub(crate) const REPORT_INTERVAL_NS: u64 = 10_000_000_000;
