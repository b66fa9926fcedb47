//! Which URLs in a call may be sent to a server that would fetch them itself. Must not know a call.
//!
//! The server resolves the name again, so a name that changes its address in between is not caught here. Servers inside
//! the operator's network get no URLs unless their hosts are listed.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use reqwest::Url;
use tokio::sync::Semaphore;

/// Maximum length of a URL, in bytes.
const MOST_URL_BYTES: usize = 8 << 10;
/// Maximum duration of all look-ups of a call.
const LOOK_UP_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of parallel look-ups, over all calls.
const MOST_LOOK_UPS: usize = 16;
/// Maximum number of names per call that are looked up.
const MOST_NAMES: usize = 16;

/// Limits the parallel look-ups. Each look-up holds a permit until the system has answered.
static LOOK_UPS: Semaphore = Semaphore::const_new(MOST_LOOK_UPS);

/// Which URLs may be sent to a server. Data in the body (`data:`) needs no permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UrlPolicy {
    /// None.
    Off,
    /// `https` to names and addresses of the public internet.
    Public,
    /// URLs of these hosts.
    Hosts(Vec<AllowedHost>),
}

/// A host that a server may fetch from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedHost {
    scheme: &'static str,
    /// In lower case. Only names below it are allowed if `below` is set.
    host: String,
    below: bool,
    /// `None` allows only the scheme's default port.
    port: Option<u16>,
}

impl AllowedHost {
    /// Parses `HOST`, `*.HOST`, `HOST:PORT`, or one of them after `http://` or `https://`. The default is `https`.
    ///
    /// # Errors
    /// What is wrong, as text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bad = || format!("`{text}` is no host: write HOST, *.HOST, HOST:PORT or http://HOST");
        let (scheme, rest) = match text.split_once("://") {
            Some(("http", rest)) => ("http", rest),
            Some(("https", rest)) => ("https", rest),
            Some(_) => return Err(bad()),
            None => ("https", text),
        };
        let (below, rest) = rest.strip_prefix("*.").map_or((false, rest), |rest| (true, rest));
        let url = Url::parse(&format!("{scheme}://{rest}/")).map_err(|_| bad())?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let written = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.clone(),
        };
        let fits = !host.is_empty() && !host.contains('*') && written == rest.to_ascii_lowercase();
        if fits { Ok(Self { scheme, host, below, port: url.port() }) } else { Err(bad()) }
    }

    fn covers(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let is_below = || host.strip_suffix(&self.host).is_some_and(|before| before.ends_with('.'));
        let is_host = if self.below { is_below() } else { host == self.host };
        is_host && url.scheme() == self.scheme && url.port() == self.port
    }
}

/// The decision about one URL.
#[derive(Debug, Clone, PartialEq, Eq)]
enum UrlVerdict {
    Allowed,
    Refused,
    /// The URL is allowed if all addresses of this name are public.
    LookUp(String),
}

impl UrlPolicy {
    fn judge(&self, text: &str) -> UrlVerdict {
        let Some(url) = plain(text) else { return UrlVerdict::Refused };
        match self {
            Self::Off => UrlVerdict::Refused,
            Self::Hosts(hosts) if hosts.iter().any(|host| host.covers(&url)) => UrlVerdict::Allowed,
            Self::Hosts(_) => UrlVerdict::Refused,
            Self::Public if url.scheme() != "https" => UrlVerdict::Refused,
            Self::Public => {
                let host = url.host_str().unwrap_or_default();
                match address(host) {
                    Some(ip) if is_public(ip) => UrlVerdict::Allowed,
                    Some(_) => UrlVerdict::Refused,
                    None if is_inside(host) => UrlVerdict::Refused,
                    None => UrlVerdict::LookUp(host.to_owned()),
                }
            }
        }
    }

    /// Returns whether a URL may be allowed, as far as its text shows.
    pub fn may_allow(&self, url: &str) -> bool {
        self.judge(url) != UrlVerdict::Refused
    }

    /// Checks URLs. `look_up` resolves names.
    ///
    /// # Errors
    /// The index of the first URL that is refused.
    pub(crate) async fn screen<F>(&self, urls: &[String], look_up: impl Fn(String) -> F) -> Result<(), usize>
    where
        F: Future<Output = Option<Vec<IpAddr>>>,
    {
        let mut known = BTreeSet::new();
        let mut names = Vec::new();
        for (index, url) in urls.iter().enumerate() {
            match self.judge(url) {
                UrlVerdict::Allowed => {}
                UrlVerdict::Refused => return Err(index),
                UrlVerdict::LookUp(name) => {
                    if known.insert(name.clone()) {
                        names.push((index, name));
                    }
                }
            }
        }
        if let Some((index, _)) = names.get(MOST_NAMES) {
            return Err(*index);
        }
        for (index, name) in names {
            let found = look_up(name).await.unwrap_or_default();
            if found.is_empty() || !found.into_iter().all(is_public) {
                return Err(index);
            }
        }
        Ok(())
    }

    /// Like [`Self::screen`], with the system's resolver.
    ///
    /// # Errors
    /// The index of the first URL that is refused, or 0 if the look-ups take too long.
    pub(crate) async fn screen_now(&self, urls: &[String]) -> Result<(), usize> {
        let screened = tokio::time::timeout(LOOK_UP_WITHIN, self.screen(urls, system)).await;
        screened.unwrap_or(Err(0))
    }
}

/// Resolves a name with the system's resolver. A cancelled look-up keeps its permit until the system has answered.
async fn system(name: String) -> Option<Vec<IpAddr>> {
    let permit = LOOK_UPS.acquire().await.ok()?;
    let looking = tokio::spawn(async move {
        let _permit = permit;
        let found = tokio::net::lookup_host((name, 443)).await.ok()?;
        Some(found.map(|address| address.ip()).collect())
    });
    looking.await.ok()?
}

/// Parses a URL that every parser understands in the same way: `http` or `https`, no user, no alternative spelling of
/// its host.
fn plain(text: &str) -> Option<Url> {
    if text.len() > MOST_URL_BYTES || !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') {
        return None;
    }
    let (scheme, rest) = text.split_once("://")?;
    if !["http", "https"].iter().any(|known| known.eq_ignore_ascii_case(scheme)) {
        return None;
    }
    let authority = rest.get(..rest.find(['/', '?', '#']).unwrap_or(rest.len()))?;
    if authority.contains('@') {
        return None;
    }
    let url = Url::parse(text).ok()?;
    let host = url.host_str()?;
    // The parser rewrites decimal, octal, short and percent-encoded hosts, so they no longer match the text.
    let port = after(authority, host)?;
    let is_port = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let ends = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    (ends && !host.ends_with('.')).then_some(url)
}

/// Returns the text after `prefix`, ignoring ASCII case.
fn after<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (head, rest) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Returns the IP address that a host is written as.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Returns whether a name belongs to a private network: a single label, or a name below a reserved suffix.
fn is_inside(name: &str) -> bool {
    const RESERVED: [&str; 11] = [
        "arpa",
        "corp",
        "home",
        "internal",
        "intranet",
        "invalid",
        "lan",
        "local",
        "localdomain",
        "localhost",
        "test",
    ];
    let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    !name.contains('.') || RESERVED.contains(&last.as_str())
}

/// Returns whether an upstream's host is on the public internet, as far as its text shows.
pub(crate) fn is_public_host(host: &str) -> bool {
    address(host).map_or_else(|| !is_inside(host), is_public)
}

/// Returns whether an address belongs to the public internet.
pub(crate) fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

/// Source: the IANA IPv4 Special-Purpose Address Registry.
fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || a == 0
        || a >= 224
        || (a == 100 && (64..128).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || (a, b, c) == (192, 88, 99)
        || (a == 198 && matches!(b, 18 | 19));
    !is_special
}

/// Accepts only global unicast, without the ranges that embed IPv4 addresses or are not routed. Mapped and translated
/// IPv4 addresses are outside global unicast. Source: the IANA IPv6 Special-Purpose Address Registry.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    let is_special = (a == 0x2001 && (b < 0x200 || b == 0xdb8)) || a == 0x2002 || a == 0x3fff;
    (0x2000..0x4000).contains(&a) && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_public_or_refused() {
        let public = |url: &str| match UrlPolicy::Public.judge(url) {
            UrlVerdict::Allowed => "allowed".to_owned(),
            UrlVerdict::Refused => "refused".to_owned(),
            UrlVerdict::LookUp(name) => name,
        };
        for (url, verdict) in [
            ("https://example.com/a.png?x=1#y", "example.com"),
            ("HTTPS://Example.COM:8443/", "example.com"),
            ("https://93.184.216.34/x", "allowed"),
            ("https://[2606:4700::1111]/x", "allowed"),
            ("http://example.com/", "refused"),
            ("https:/example.com/", "refused"),
            ("https:example.com", "refused"),
            ("//example.com/", "refused"),
            ("/etc/passwd", "refused"),
            ("file:///etc/passwd", "refused"),
            ("gopher://127.0.0.1:25/x", "refused"),
            ("https://127.0.0.1/", "refused"),
            ("https://127.1/", "refused"),
            ("https://2130706433/", "refused"),
            ("https://0x7f000001/", "refused"),
            ("https://0177.0.0.1/", "refused"),
            ("https://8.8.2056/", "refused"),
            ("https://0x8.8.8.8/", "refused"),
            ("https://10.0.0.1/", "refused"),
            ("https://100.64.0.1/", "refused"),
            ("https://169.254.169.254/latest/", "refused"),
            ("https://192.168.1.1/", "refused"),
            ("https://198.18.0.1/", "refused"),
            ("https://0.0.0.0/", "refused"),
            ("https://224.0.0.1/", "refused"),
            ("https://[::1]/", "refused"),
            ("https://[::]/", "refused"),
            ("https://[::ffff:8.8.8.8]/", "refused"),
            ("https://[::ffff:127.0.0.1]/", "refused"),
            ("https://[64:ff9b::7f00:1]/", "refused"),
            ("https://[2002:7f00:1::]/", "refused"),
            ("https://[fe80::1%25eth0]/", "refused"),
            ("https://[fe80::1]/", "refused"),
            ("https://[fd00::1]/", "refused"),
            ("https://localhost/", "refused"),
            ("https://a.localhost/", "refused"),
            ("https://metadata/", "refused"),
            ("https://metadata.google.internal/", "refused"),
            ("https://printer.local/", "refused"),
            ("https://example.com./", "refused"),
            ("https://localhost./", "refused"),
            ("https://me@example.com/", "refused"),
            ("https://example.com\\@127.0.0.1/", "refused"),
            ("https://example.com%2f@127.0.0.1/", "refused"),
            ("https://127.0.0.1%2eexample.com/", "refused"),
            ("https://%31%32%37.0.0.1/", "refused"),
            ("https://１２７.0.0.1/", "refused"),
            ("https://ｅxample.com/", "refused"),
            ("https://exa\tmple.com/", "refused"),
            (" https://example.com/", "refused"),
            ("https://example.com:/", "refused"),
            ("https://", "refused"),
        ] {
            assert_eq!(public(url), verdict, "{url}");
            assert_eq!(UrlPolicy::Off.judge(url), UrlVerdict::Refused, "{url}");
        }
    }

    #[test]
    fn a_list_allows_its_hosts_and_no_other() {
        let hosts = ["cdn.example.com", "*.img.example.com", "http://assets.internal", "10.0.0.7:8443"];
        let policy = UrlPolicy::Hosts(hosts.map(|host| AllowedHost::parse(host).unwrap()).into());
        for (url, allowed) in [
            ("https://cdn.example.com/a", true),
            ("https://CDN.example.com/a", true),
            ("http://cdn.example.com/a", false),
            ("https://cdn.example.com:8443/a", false),
            ("https://x.cdn.example.com/a", false),
            ("https://a.img.example.com/", true),
            ("https://img.example.com/", false),
            ("https://evilimg.example.com/", false),
            ("http://assets.internal/a", true),
            ("https://assets.internal/a", false),
            ("https://10.0.0.7:8443/", true),
            ("https://10.0.0.7/", false),
            ("https://167772167:8443/", false),
            ("https://example.com/", false),
        ] {
            assert_eq!(policy.judge(url) == UrlVerdict::Allowed, allowed, "{url}");
        }
        for bad in ["", "ftp://a.b", "a.b/c", "me@a.b", "*", "0x7f000001", "a b"] {
            assert!(AllowedHost::parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn every_address_of_a_name_must_be_public() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let look_up = |name: String| async move {
            match name.as_str() {
                "good.example.com" => Some(vec![ip("93.184.216.34"), ip("2606:4700::1111")]),
                "mixed.example.com" => Some(vec![ip("93.184.216.34"), ip("10.0.0.1")]),
                "inside.example.com" => Some(vec![ip("::ffff:127.0.0.1")]),
                "empty.example.com" => Some(Vec::new()),
                _ => None,
            }
        };
        for (names, refused) in [
            (&["good"][..], None),
            (&["good", "good"], None),
            (&["good", "mixed"], Some(1)),
            (&["inside"], Some(0)),
            (&["empty"], Some(0)),
            (&["missing"], Some(0)),
        ] {
            let urls: Vec<String> =
                names.iter().map(|name| format!("https://{name}.example.com/x")).collect();
            assert_eq!(UrlPolicy::Public.screen(&urls, look_up).await.err(), refused, "{names:?}");
        }
        let many: Vec<String> = (0..=MOST_NAMES).map(|at| format!("https://n{at}.example.com/")).collect();
        let all_public = |_| async { Some(vec![IpAddr::from([93, 184, 216, 34])]) };
        assert_eq!(UrlPolicy::Public.screen(&many, all_public).await, Err(MOST_NAMES));
        assert_eq!(UrlPolicy::Public.screen(&many[..MOST_NAMES], all_public).await, Ok(()));
    }
}
