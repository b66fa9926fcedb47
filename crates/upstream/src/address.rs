//! A server's address as configured, and the URLs below it. The only file that joins paths. Must not know a connection.

use std::net::IpAddr;

use reqwest::Url;

/// The address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServerAddress {
    /// Root URL of the API, with a trailing slash: `https://api.openai.com/v1/`.
    api: Url,
    /// Root URL without the API's version, with a trailing slash: `https://api.openai.com/`.
    server: Url,
}

impl ServerAddress {
    /// Parses an address, with or without a trailing slash or `/v1`. A path that names a version itself
    /// (`/api/paas/v4`, `/v1beta/openai`) is used as the API's root. Only a loopback address may omit the scheme: a key
    /// must not be sent in clear to another host by default.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let trimmed = text.trim().trim_end_matches('/');
        let bad = |why: &str| format!("`{}` is no server's address: {why}", shown(trimmed));
        let url = if trimmed.contains("://") {
            Url::parse(&format!("{trimmed}/")).map_err(|error| bad(&error.to_string()))?
        } else {
            let here = Url::parse(&format!("http://{trimmed}/")).ok().filter(is_loopback);
            here.ok_or_else(|| bad("write http:// or https:// before it"))?
        };
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(bad("it must begin with http:// or https://"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("it must hold no user and password; the key has a setting of its own"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("it must have no query and no fragment"));
        }
        let path = url.path().trim_matches('/');
        if let Some(place) = ["/chat/completions", "/completions", "/messages", "/models"]
            .iter()
            .find(|place| format!("/{path}").ends_with(*place))
        {
            return Err(bad(&format!("leave `{place}` out; it is added to it")));
        }
        Ok(Self::with_root(&url, path))
    }

    fn with_root(url: &Url, path: &str) -> Self {
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let version = segments.iter().position(|segment| is_version(segment));
        let before = segments.iter().take(version.unwrap_or(segments.len()));
        let server = rooted(url, before.copied());
        let api = match version {
            Some(_) => rooted(url, segments.iter().copied()),
            None => rooted(url, segments.iter().copied().chain(["v1"])),
        };
        Self { api, server }
    }

    /// Returns the URL of an API path, such as `chat/completions`.
    pub(crate) fn api(&self, place: &str) -> Url {
        joined(&self.api, place)
    }

    /// Returns the URL of a server path beside the API, such as `health`.
    pub(crate) fn server(&self, place: &str) -> Url {
        joined(&self.server, place)
    }

    /// Returns host and port as text.
    pub(crate) fn authority(&self) -> String {
        let (host, port) = self.host();
        format!("{host}:{port}")
    }

    /// Returns the host, a name or an IP address, and the port.
    pub(crate) fn host(&self) -> (&str, u16) {
        (self.api.host_str().unwrap_or_default(), self.api.port_or_known_default().unwrap_or_default())
    }

    /// Returns whether the server is reached by TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.api.scheme() == "https"
    }
}

/// Matches `v1`, `v4`, `v1beta`, `v1.1`.
fn is_version(segment: &str) -> bool {
    let mut rest = segment.strip_prefix('v').unwrap_or_default().chars();
    rest.next().is_some_and(|c| c.is_ascii_digit()) && rest.all(|c| c.is_ascii_alphanumeric() || c == '.')
}

fn rooted<'a>(url: &Url, segments: impl Iterator<Item = &'a str>) -> Url {
    let mut path = String::from("/");
    for segment in segments {
        path.push_str(segment);
        path.push('/');
    }
    let mut url = url.clone();
    url.set_path(&path);
    url
}

fn joined(root: &Url, place: &str) -> Url {
    let mut url = root.clone();
    url.set_path(&format!("{}{}", root.path(), place.trim_start_matches('/')));
    url
}

fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Returns an address without the parts that may be secret: user, password, query and fragment. Removes control
/// characters and keeps at most 200 characters.
pub(crate) fn shown(text: &str) -> String {
    let plain = text.split(['?', '#']).next().unwrap_or_default();
    let plain: String = plain.chars().filter(|c| !c.is_control()).take(200).collect();
    let (scheme, rest) =
        plain.split_once("://").map_or(("", plain.as_str()), |(scheme, rest)| (scheme, rest));
    let host_end = rest.find('/').unwrap_or(rest.len());
    let after = rest.get(..host_end).and_then(|host| host.rfind('@')).map_or(0, |at| at + 1);
    let rest = rest.get(after..).unwrap_or_default();
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_an_address_leads_to_the_same_places() {
        for (written, chat, health) in [
            ("http://h:8000", "http://h:8000/v1/chat/completions", "http://h:8000/health"),
            ("http://h:8000/", "http://h:8000/v1/chat/completions", "http://h:8000/health"),
            (" http://h:8000/v1 ", "http://h:8000/v1/chat/completions", "http://h:8000/health"),
            ("http://h:8000/v1//", "http://h:8000/v1/chat/completions", "http://h:8000/health"),
            ("127.0.0.1:9", "http://127.0.0.1:9/v1/chat/completions", "http://127.0.0.1:9/health"),
            ("localhost:9/v1", "http://localhost:9/v1/chat/completions", "http://localhost:9/health"),
            ("https://o.ai/api/v1", "https://o.ai/api/v1/chat/completions", "https://o.ai/api/health"),
            ("https://o.ai/api", "https://o.ai/api/v1/chat/completions", "https://o.ai/api/health"),
            (
                "https://z.ai/api/paas/v4/",
                "https://z.ai/api/paas/v4/chat/completions",
                "https://z.ai/api/paas/health",
            ),
            (
                "https://g.com/v1beta/openai",
                "https://g.com/v1beta/openai/chat/completions",
                "https://g.com/health",
            ),
            (
                "https://[::1]:8443/vllm",
                "https://[::1]:8443/vllm/v1/chat/completions",
                "https://[::1]:8443/vllm/health",
            ),
        ] {
            let address = ServerAddress::parse(written).unwrap();
            assert_eq!(address.api("chat/completions").as_str(), chat, "{written}");
            assert_eq!(address.server("health").as_str(), health, "{written}");
        }
    }

    #[test]
    fn what_is_no_address_is_told_without_its_secrets() {
        for (written, why) in [
            ("", "write http://"),
            ("example.org", "write http://"),
            ("ftp://h", "must begin with http://"),
            ("http://", "no server's address"),
            ("http://me:secret@h/", "no user and password"),
            ("http://h/?key=secret", "no query"),
            ("http://h/v1/chat/completions", "leave `/chat/completions` out"),
            ("http://h/v1/messages/", "leave `/messages` out"),
        ] {
            let error = ServerAddress::parse(written).unwrap_err();
            assert!(error.contains(why) && !error.contains("secret"), "{written}: {error}");
        }
        assert_eq!(shown("https://u:p@h/a?token=1#x"), "https://h/a");
        assert_eq!(shown("/login?next=1"), "/login");
    }
}
