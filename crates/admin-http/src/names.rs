//! The host names that a listener accepts. Must not know what is requested.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header;
use axum::http::uri::Authority;

use crate::problem::ApiProblem;
use headrace_domain::AdminCode;

/// The host names that a listener accepts: addresses, `localhost`, and the name in its configuration. Any other name
/// may belong to an attacker who points it to this address (DNS rebinding).
#[derive(Debug, Clone)]
pub(crate) struct HostNames {
    given: Option<String>,
}

impl HostNames {
    /// Also accepts the host of `url`, such as `https://console.example.com`.
    pub(crate) fn new(url: Option<&str>) -> Self {
        let host = url.and_then(|url| url.split_once("://")).map(|(_, rest)| rest.trim_end_matches('/'));
        let host = host.and_then(|host| host.parse::<Authority>().ok());
        Self { given: host.map(|host| host.host().to_ascii_lowercase()) }
    }

    /// Checks the host name of a request.
    ///
    /// # Errors
    /// [`AdminCode::Host`] if the host is missing, given twice, or not accepted.
    pub(crate) fn check(&self, request: &Request) -> Result<(), ApiProblem> {
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next()) {
            (Some(host), None) => host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()),
            _ => None,
        };
        let known = host.as_ref().is_some_and(|host| self.is_ours(host.host()));
        // A request line such as `GET http://host/` names the host a second time.
        let same = request.uri().authority().is_none_or(|asked| Some(asked) == host.as_ref());
        if known && same {
            return Ok(());
        }
        Err(ApiProblem::new(
            AdminCode::Host,
            "this listener is not known by that name: ask by its address or as localhost, or set `admin.url`",
        ))
    }

    fn is_ours(&self, host: &str) -> bool {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare.parse::<IpAddr>().is_ok()
            || host.eq_ignore_ascii_case("localhost")
            || self.given.as_deref().is_some_and(|given| host.eq_ignore_ascii_case(given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_request::request;

    #[test]
    fn only_names_that_nobody_else_can_take_are_ours() {
        let names = HostNames::new(Some("https://Console.example.com:8443/"));
        for (hosts, good) in [
            (&["127.0.0.1:8081"][..], true),
            (&["localhost"], true),
            (&["LOCALHOST:9"], true),
            (&["[::1]:8081"], true),
            (&["192.0.2.7"], true),
            (&["console.example.com"], true),
            (&["evil.example"], false),
            (&["localhost.evil.example"], false),
            (&["127.0.0.1.evil.example:8081"], false),
            (&["127.0.0.1", "127.0.0.1"], false),
            (&[""], false),
            (&[], false),
        ] {
            let headers: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(names.check(&request(&headers)).is_ok(), good, "{hosts:?}");
        }
    }
}
