//! The faults by name. Knows not how they look on the wire.

use std::str::FromStr;

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident = $name:literal,)*) => {
        /// How a request is answered.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$fault,)*];

            /// The name by which a request chooses it: as its model, or as the first part of its path.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$fault => $name,)*
                }
            }
        }
    };
}

faults! {
    /// No fault: a good answer.
    Good = "good",
    /// A good answer with 100 ms before each event: time to break it off.
    Slow = "slow",
    /// An error where an event of the answer is expected; a whole answer that is an error, with status 200.
    ErrorInside200 = "error_inside_200",
    /// Two events, then nothing more on an open connection.
    Stall = "stall",
    /// The connection ends within an event (or within a whole answer), against its framing.
    Cut = "cut",
    /// The connection is reset within an event.
    Reset = "reset",
    /// The transfer ends well, but within an event.
    CutClean = "cut_clean",
    /// Fewer bytes than the head promises.
    Short = "short",
    /// A chunk whose size is no number.
    BadChunk = "bad_chunk",
    /// No finish reason, though everything else is there.
    NoFinish = "no_finish",
    /// The stream ends after its text: no finish reason, usage or last event.
    NoEnd = "no_end",
    /// Everything but the last event (`[DONE]`, `message_stop`).
    NoDone = "no_done",
    /// No usage at all.
    NoUsage = "no_usage",
    /// Usage twice, with different numbers.
    DoubledUsage = "doubled_usage",
    /// Usage in every event, growing.
    CumulativeUsage = "cumulative_usage",
    /// More events after the last one.
    AfterDone = "after_done",
    /// A page of HTML with status 200.
    Html = "html",
    /// A page of HTML that says it is what was asked for.
    HtmlInDisguise = "html_in_disguise",
    /// Status 200 and no body.
    Empty = "empty",
    /// Status 204.
    NoContent = "no_content",
    /// Status 307 to another place, with a secret in its query.
    Redirect = "redirect",
    /// Headers without end, as fast as they are read.
    EndlessHeaders = "endless_headers",
    /// Headers without end, one every 20 ms.
    DrippingHeaders = "dripping_headers",
    /// 100 KiB of headers, then a good answer.
    HugeHeaders = "huge_headers",
    /// Interim answers (status 103) without end, one every 20 ms.
    EndlessInterim = "endless_interim",
    /// A good answer whose lines end in CR and LF.
    Crlf = "crlf",
    /// A good answer whose lines end in CR.
    Cr = "cr",
    /// A good answer behind a byte order mark.
    Bom = "bom",
    /// A good answer with comments between and within its events.
    Comments = "comments",
    /// Comments without end, one every 20 ms, and never an event.
    EndlessComments = "endless_comments",
    /// A good answer, one byte at a time.
    Bytewise = "bytewise",
    /// 10 MB in one line.
    TenMbLine = "ten_mb_line",
    /// A body without end.
    EndlessBody = "endless_body",
    /// A line that is not UTF-8.
    NotUtf8 = "not_utf8",
    /// A good answer after 300 ms without a head.
    SlowHead = "slow_head",
    /// No head, ever.
    NoHead = "no_head",
    /// The connection is closed before the head.
    CloseBeforeHead = "close_before_head",
    /// The connection is reset before the head.
    ResetBeforeHead = "reset_before_head",
    /// Status 429 with `retry-after: 7`.
    RateLimited = "rate_limited",
    /// Status 429 with limits and resets as OpenAI tells them.
    LimitHeaders = "limit_headers",
    /// Status 401 with a body that repeats the credentials that came.
    Unauthorized = "unauthorized",
    /// Status 404.
    NotFound = "not_found",
    /// Status 400: the prompt is longer than the context.
    TooLong = "too_long",
    /// Status 500.
    ServerError = "server_error",
    /// Status 503 with a body without end.
    EndlessError = "endless_error",
    /// Status 500 for every odd request, a good answer for every even one.
    Flaky = "flaky",
    /// A whole answer, whatever was asked for.
    AlwaysWhole = "always_whole",
    /// A stream, whatever was asked for.
    AlwaysStream = "always_stream",
    /// A body that says it is compressed.
    Gzip = "gzip",
    /// Another protocol's greeting.
    NotHttp = "not_http",
}

impl FromStr for Fault {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name).ok_or(())
    }
}
