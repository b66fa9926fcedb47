//! The faults and their names. Does not know how they look on the wire.

use std::str::FromStr;

macro_rules! faults {
    ($($(#[$doc:meta])* $fault:ident = $name:literal,)*) => {
        /// How the server answers a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fault {
            $($(#[$doc])* $fault,)*
        }

        impl Fault {
            /// All faults.
            pub const ALL: &[Self] = &[$(Self::$fault,)*];

            /// The fault's name. A request chooses a fault by its model, or by the first segment of its path.
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
    /// A good answer with a delay of 100 ms before each event, so that a client can break it off.
    Slow = "slow",
    /// An error in place of an event. A whole answer is an error with status 200.
    ErrorInside200 = "error_inside_200",
    /// Two events, then silence on an open connection.
    Stall = "stall",
    /// The connection ends within an event, or within a whole answer, in violation of its framing.
    Cut = "cut",
    /// The connection is reset within an event.
    Reset = "reset",
    /// The transfer ends properly, but within an event.
    CutClean = "cut_clean",
    /// Fewer bytes than the head announces.
    Short = "short",
    /// A chunk with an invalid size.
    BadChunk = "bad_chunk",
    /// No finish reason, but everything else.
    NoFinish = "no_finish",
    /// The stream ends after its text, without a finish reason, usage or last event.
    NoEnd = "no_end",
    /// Everything except the last event (`[DONE]`, `message_stop`).
    NoDone = "no_done",
    /// No usage at all.
    NoUsage = "no_usage",
    /// Usage twice, with different numbers.
    DoubledUsage = "doubled_usage",
    /// Usage in every event, with growing numbers.
    CumulativeUsage = "cumulative_usage",
    /// More events after the last one.
    AfterDone = "after_done",
    /// An HTML page with status 200.
    Html = "html",
    /// An HTML page with the content type of the expected answer.
    HtmlInDisguise = "html_in_disguise",
    /// Status 200 and no body.
    Empty = "empty",
    /// Status 204.
    NoContent = "no_content",
    /// Status 307 to another URL, with a secret in its query.
    Redirect = "redirect",
    /// Endless headers, as fast as the client reads them.
    EndlessHeaders = "endless_headers",
    /// Endless headers, one every 20 ms.
    DrippingHeaders = "dripping_headers",
    /// 100 KiB of headers, then a good answer.
    HugeHeaders = "huge_headers",
    /// Endless interim responses (status 103), one every 20 ms.
    EndlessInterim = "endless_interim",
    /// A good answer whose lines end in CR and LF.
    Crlf = "crlf",
    /// A good answer whose lines end in CR.
    Cr = "cr",
    /// A good answer after a byte order mark.
    Bom = "bom",
    /// A good answer with comments between and within its events.
    Comments = "comments",
    /// Endless comments, one every 20 ms, and no event.
    EndlessComments = "endless_comments",
    /// A good answer, one byte at a time.
    Bytewise = "bytewise",
    /// 10 MB in one line.
    TenMbLine = "ten_mb_line",
    /// An endless body.
    EndlessBody = "endless_body",
    /// A line that is not UTF-8.
    NotUtf8 = "not_utf8",
    /// A good answer after 300 ms without a response head.
    SlowHead = "slow_head",
    /// No response head, ever.
    NoHead = "no_head",
    /// The connection is closed before the head.
    CloseBeforeHead = "close_before_head",
    /// The connection is reset before the head.
    ResetBeforeHead = "reset_before_head",
    /// Status 429 with `retry-after: 7`.
    RateLimited = "rate_limited",
    /// Status 429 with limits and resets in OpenAI's headers.
    LimitHeaders = "limit_headers",
    /// Status 401 with a body that repeats the client's credentials.
    Unauthorized = "unauthorized",
    /// Status 404.
    NotFound = "not_found",
    /// Status 400: the prompt is longer than the context.
    TooLong = "too_long",
    /// Status 500.
    ServerError = "server_error",
    /// Status 503 with an endless body.
    EndlessError = "endless_error",
    /// Status 500 for every odd request, a good answer for every even one.
    Flaky = "flaky",
    /// A whole answer, even if the request asks for a stream.
    AlwaysWhole = "always_whole",
    /// A stream, even if the request asks for a whole answer.
    AlwaysStream = "always_stream",
    /// A body with the header `content-encoding: gzip` that is not compressed.
    Gzip = "gzip",
    /// The greeting of another protocol.
    NotHttp = "not_http",
}

impl FromStr for Fault {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.iter().copied().find(|fault| fault.name() == name).ok_or(())
    }
}
