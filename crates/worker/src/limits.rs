//! Every bound of the protocol, in one place, units in the names.

use std::time::Duration;

/// The version of jobs and events that is spoken here.
pub const PROTOCOL: u8 = 2;
/// The shortest secret, in bytes.
pub const LEAST_SECRET_BYTES: usize = 32;
/// For how long a ticket is good.
pub(crate) const TICKET_LIFE_S: u64 = 30;
/// How far the clocks of both ends may be apart.
pub(crate) const CLOCK_SKEW_S: u64 = 30;
/// Tickets that are remembered until they have expired; one more is refused.
pub(crate) const MAX_TICKETS: usize = 1 << 19;
/// One frame of a stream, without its length.
pub(crate) const MAX_FRAME_BYTES: usize = 1 << 20;
/// A frame is filled with scores up to so many bytes.
pub(crate) const SCORES_FRAME_BYTES: usize = 64 << 10;
/// A chunk of a stream is filled with frames up to so many bytes.
pub(crate) const CHUNK_BYTES: usize = 32 << 10;
/// How often a stream shows that it lives while nothing else is to be said.
pub const BEAT: Duration = Duration::from_secs(1);
/// For how long a stream that is read may bring nothing.
pub const SILENCE: Duration = Duration::from_secs(20);
/// For how long nobody may ask a stream for more, before its job is let go: gateways give up on slow readers earlier.
pub(crate) const UNREAD: Duration = Duration::from_secs(60);
/// Signs of life of one job.
pub(crate) const MAX_BEATS: u32 = 1 << 18;
/// Bytes of text that one id can stand for.
pub(crate) const MAX_TOKEN_BYTES: u64 = 4 << 10;
/// Answers of one job.
pub(crate) const MAX_CHOICES: u32 = 1 << 10;
/// The longest name of a model, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 256;
/// Stop strings of one job, and bytes of all of them.
pub(crate) const MAX_STOPS: usize = 1 << 10;
pub(crate) const MAX_STOP_BYTES: usize = 256 << 10;
/// Stop ids, and ids with a bias, of one job.
pub(crate) const MAX_IDS: usize = 1 << 16;
/// What answers are held to, as it travels.
pub(crate) const MAX_FORM_BYTES: usize = 512 << 10;
/// Prefixes of one prompt that are to be kept. Dialects take four.
pub(crate) const MAX_PINS: usize = 8;
/// All that stands behind a job: what answers are held to, and its wishes.
pub(crate) const MAX_BEHIND_BYTES: usize = MAX_FORM_BYTES + (1 << 10);
/// Ids that may stand between a thought and the answer.
pub(crate) const MAX_BETWEEN: usize = 64;
/// Bytes of events that may wait unread at the worker.
pub(crate) const LEAST_UNREAD_BYTES: usize = 16 << 10;
pub(crate) const MOST_UNREAD_BYTES: usize = 1 << 20;
/// The largest weight of a tenant.
pub(crate) const MAX_WEIGHT: u32 = 1 << 20;
/// Sequences, and tokens, that a worker can tell of.
pub(crate) const MAX_SEQUENCES: u32 = 1 << 24;
pub(crate) const MAX_TOKENS: u64 = 1 << 40;
/// The longest wait that is told.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(24 * 3600);
/// What a worker tells of itself.
pub const MAX_ABOUT_BYTES: usize = 4 << 20;
/// Models of one worker.
pub(crate) const MAX_MODELS: usize = 1_000;
/// The words of one model.
pub const MAX_WORDS_BYTES: usize = 128 << 20;
/// Files of one model's words.
pub(crate) const MAX_WORDS_FILES: usize = 16;
/// A refusal.
pub const MAX_REFUSAL_BYTES: usize = 16 << 10;
/// Characters of what the other end says that are repeated.
pub(crate) const SAID_CHARS: usize = 300;
/// How often the log tells that somebody showed no good ticket, in nanoseconds.
pub(crate) const TOLD_EVERY_NS: u64 = 10_000_000_000;
