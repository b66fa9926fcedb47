//! What went wrong with a connection, out of the errors of the HTTP library. Knows no configuration beyond the bounds that were
//! broken, and repeats no address with its query.

use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use headrace_engine_api::{RelayError, RelayWait};

/// Why a request brought no head of an answer. `at` is host and port.
pub(crate) fn before_the_head(
    error: &reqwest::Error,
    at: &str,
    connect: Duration,
    head_bytes: usize,
) -> RelayError {
    if error.is_connect() {
        return match error.is_timeout() || io_kind(error) == Some(ErrorKind::TimedOut) {
            true => RelayError::Timeout { what: RelayWait::Connect, after: connect },
            false => RelayError::Connect { why: unreachable(error, at) },
        };
    }
    match find::<hyper::Error>(error) {
        Some(cause) if cause.is_parse_too_large() => {
            RelayError::TooLarge { what: "headers", limit: head_bytes }
        }
        Some(cause) if cause.is_parse() => RelayError::Cut {
            why: format!("what came is no HTTP ({cause}); does {at} speak https, or another protocol?"),
        },
        Some(cause) if cause.is_incomplete_message() || cause.is_canceled() => {
            RelayError::Cut { why: "the connection was closed before the answer began".to_owned() }
        }
        _ => RelayError::Cut { why: broken(error) },
    }
}

/// Why an answer that had begun does not go on.
pub(crate) fn within_the_body(error: &reqwest::Error) -> RelayError {
    RelayError::Cut { why: broken(error) }
}

fn unreachable(error: &reqwest::Error, at: &str) -> String {
    if error.is_dns() {
        return format!("the name of {at} cannot be resolved ({})", innermost(error));
    }
    match io_kind(error) {
        Some(ErrorKind::ConnectionRefused) => format!("connection refused at {at}"),
        Some(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => format!("{at} cannot be reached"),
        _ => {
            let causes = causes(error);
            let hint = match causes.contains("InvalidContentType") || causes.contains("corrupt message") {
                true => "; does it speak plain http?",
                false => "",
            };
            format!("{at}: {causes}{hint}")
        }
    }
}

fn broken(error: &reqwest::Error) -> String {
    match io_kind(error) {
        Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::ConnectionAborted) => {
            "the connection was reset".to_owned()
        }
        Some(ErrorKind::UnexpectedEof) => "the connection ended before the answer did".to_owned(),
        _ if find::<hyper::Error>(error).is_some_and(hyper::Error::is_incomplete_message) => {
            "the connection ended before the answer did".to_owned()
        }
        _ => causes(error),
    }
}

/// The causes of an error of the library, outermost first. Its own text only repeats the address.
fn causes(error: &reqwest::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for text in sources(error).map(ToString::to_string) {
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
    }
    if parts.is_empty() { "the HTTP library gave up".to_owned() } else { parts.join(": ") }
}

fn innermost(error: &reqwest::Error) -> String {
    sources(error).last().map_or_else(|| "no reason given".to_owned(), ToString::to_string)
}

fn sources<'a>(error: &'a reqwest::Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = error.source();
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

fn find<E: Error + 'static>(error: &reqwest::Error) -> Option<&E> {
    sources(error).find_map(|cause| cause.downcast_ref())
}

fn io_kind(error: &reqwest::Error) -> Option<ErrorKind> {
    find::<std::io::Error>(error).map(std::io::Error::kind)
}
