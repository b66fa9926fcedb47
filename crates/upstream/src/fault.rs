//! Translates the errors of HTTP libraries into [`RelayError`]. Must not know the configuration beyond the limits that
//! were exceeded. Never repeats an address with its query.

use std::error::Error;
use std::io::ErrorKind;

use headrace_engine_api::RelayError;

use crate::plaintext_pool::ClearError;
use crate::spec::UpstreamSpec;
use crate::trust::RefusedCertificate;

/// An error of the HTTP library or of the plaintext pool.
pub(crate) struct TransportError<'a> {
    /// The error occurred before a connection was established.
    connecting: bool,
    timed_out: bool,
    /// The server's name has no address.
    unresolved: bool,
    /// The source of the error. The error's own text only repeats the address.
    cause: Option<&'a (dyn Error + 'static)>,
}

impl<'a> From<&'a reqwest::Error> for TransportError<'a> {
    fn from(error: &'a reqwest::Error) -> Self {
        let (connecting, timed_out) = (error.is_connect(), error.is_timeout());
        Self { connecting, timed_out, unresolved: error.is_dns(), cause: error.source() }
    }
}

impl<'a> From<&'a ClearError> for TransportError<'a> {
    fn from(error: &'a ClearError) -> Self {
        let (connecting, timed_out, unresolved) = match error {
            ClearError::Late => (true, true, false),
            ClearError::Connect { unresolved, .. } => (true, false, *unresolved),
            ClearError::Http(_) => (false, false, false),
        };
        Self { connecting, timed_out, unresolved, cause: error.source() }
    }
}

/// Translates an error that occurred before the head of an answer. `at` is host and port.
pub(crate) fn before_the_head<'a>(
    error: impl Into<TransportError<'a>>,
    at: &str,
    spec: &UpstreamSpec,
) -> RelayError {
    let error = &error.into();
    let head_bytes = spec.bounds.head_bytes;
    if error.connecting {
        return match error.timed_out || io_kind(error) == Some(ErrorKind::TimedOut) {
            true => RelayError::ConnectTimeout { after: spec.timeouts.connect, hint: late(at, spec) },
            false => RelayError::Connect { why: unreachable(error, at, spec) },
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

/// Translates an error that ended an answer in its middle.
pub(crate) fn within_the_body(error: &reqwest::Error) -> RelayError {
    RelayError::Cut { why: broken(&error.into()) }
}

/// What may lie in the way of a connection that takes too long: an address that no packet returns from.
fn late(at: &str, spec: &UpstreamSpec) -> String {
    let proxy = about_proxies(spec, true);
    let upstream = &spec.name;
    format!(
        " to {at}: a firewall may drop it, or the address is wrong (`url` of upstream `{upstream}`; `connect_timeout` is the wait){proxy}"
    )
}

fn unreachable(error: &TransportError<'_>, at: &str, spec: &UpstreamSpec) -> String {
    if error.unresolved {
        let proxy = about_proxies(spec, true);
        return format!("the name of {at} cannot be resolved ({}){proxy}", innermost(error));
    }
    if let Some(refused) = refused_certificate(error) {
        return refused.explained(at, spec);
    }
    match io_kind(error) {
        Some(ErrorKind::ConnectionRefused) => {
            format!("connection refused at {at}{}", about_proxies(spec, false))
        }
        Some(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
            format!("{at} cannot be reached{}", about_proxies(spec, true))
        }
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

/// Returns a hint that proxies of the environment are not used. It is given if a proxy may be the only way to the
/// server: the environment names a proxy, or `remote` is set.
fn about_proxies(spec: &UpstreamSpec, remote: bool) -> String {
    let upstream = &spec.name;
    match spec.unused_proxy {
        _ if spec.proxy.is_some() => String::new(),
        Some(variable) => format!(
            "; {variable} is set here, but Headrace uses no proxy of the environment: set `proxy` of upstream `{upstream}` if \
             one leads there"
        ),
        None if remote => format!(
            "; if only a proxy leads there, set `proxy` of upstream `{upstream}`: HTTPS_PROXY, https_proxy and ALL_PROXY are \
             not used"
        ),
        None => String::new(),
    }
}

/// Returns the refused certificate, if it was the reason why the handshake failed.
fn refused_certificate<'a>(error: &TransportError<'a>) -> Option<&'a RefusedCertificate> {
    let tls = sources(error).find_map(tls_error)?;
    let rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)) = tls else { return None };
    other.0.downcast_ref()
}

/// Returns the TLS error inside an error. Socket errors hide it from their own `source`.
fn tls_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut cause = cause;
    while let Some(carried) = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        cause = carried;
    }
    cause.downcast_ref()
}

fn broken(error: &TransportError<'_>) -> String {
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

/// Returns the causes of an error, outermost first.
fn causes(error: &TransportError<'_>) -> String {
    let mut parts: Vec<String> = Vec::new();
    for text in sources(error).map(ToString::to_string) {
        if parts.last().is_none_or(|last| !last.contains(&text)) {
            parts.push(text);
        }
    }
    if parts.is_empty() { "the HTTP library gave up".to_owned() } else { parts.join(": ") }
}

fn innermost(error: &TransportError<'_>) -> String {
    sources(error).last().map_or_else(|| "no reason given".to_owned(), ToString::to_string)
}

fn sources<'a>(error: &TransportError<'a>) -> impl Iterator<Item = &'a (dyn Error + 'static)> + use<'a> {
    let mut next = error.cause;
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
}

fn find<'a, E: Error + 'static>(error: &TransportError<'a>) -> Option<&'a E> {
    sources(error).find_map(|cause| cause.downcast_ref())
}

fn io_kind(error: &TransportError<'_>) -> Option<ErrorKind> {
    find::<std::io::Error>(error).map(std::io::Error::kind)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::UpstreamKind;

    #[test]
    fn a_connection_that_takes_too_long_is_explained_with_the_way_out() {
        let mut spec = UpstreamSpec::new("gpu", UpstreamKind::Vllm, "http://gpu.example:8000");
        spec.timeouts.connect = Duration::from_secs(7);
        let said =
            |spec: &UpstreamSpec| before_the_head(&ClearError::Late, "gpu.example:8000", spec).to_string();
        let all = ["no connection within 7 s to gpu.example:8000", "firewall", "`connect_timeout`"];
        let unnamed = said(&spec);
        for words in
            all.into_iter().chain(["set `proxy` of upstream `gpu`", "HTTPS_PROXY, https_proxy and ALL_PROXY"])
        {
            assert!(unnamed.contains(words), "{unnamed}");
        }
        spec.unused_proxy = Some("https_proxy");
        assert!(
            said(&spec).contains("https_proxy is set here, but Headrace uses no proxy of the environment")
        );
        spec.proxy = Some("http://127.0.0.1:3128".into());
        let proxied = said(&spec);
        assert!(
            !proxied.contains("https_proxy") && all.iter().all(|words| proxied.contains(words)),
            "{proxied}"
        );
    }
}
