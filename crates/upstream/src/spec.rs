//! What is said of a server of others before anything is built: plain data, with its defaults and its check. Knows no files,
//! no environment and no connection.

use std::net::IpAddr;
use std::time::Duration;

use headrace_engine_api::{Abandoned, PrefixCache};
use headrace_worker::{BEAT, Secret};
use http::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use crate::address::Address;
use crate::cache::feed::CacheFeed;
use crate::kind::Kind;
use crate::urls::{UrlPolicy, is_public, is_public_host};

/// One server.
#[derive(Debug, Clone)]
pub struct UpstreamSpec {
    /// Its name in our configuration.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Its address, with or without `/v1`.
    pub url: String,
    /// The address that connections lead to, of several that the name in `url` has. `None` if the name is looked up.
    pub ip: Option<IpAddr>,
    /// The key that it knows us by. It goes out in `x-api-key` to Anthropic's kind and as a bearer token to all others.
    pub key: Option<SecretString>,
    /// What signs the tickets of jobs: a Headrace that has the same one is asked as a worker.
    pub worker_secret: Option<SecretString>,
    /// Headers of every call beside ours. Their values may be secret.
    pub headers: Vec<(String, SecretString)>,
    /// How long is waited.
    pub timeouts: Timeouts,
    /// Whose certificates are trusted beside those of this machine's authorities: PEM.
    pub extra_roots_pem: Option<Vec<u8>>,
    /// A proxy (`http`, `https`, `socks5`, `socks5h`), with user and password where it wants them. The environment's are not used.
    pub proxy: Option<SecretString>,
    /// The variable of the environment that names a proxy, such as `HTTPS_PROXY`, where `proxy` does not. It is named in errors only.
    pub unused_proxy: Option<&'static str>,
    /// Connections that wait for the next call.
    pub pool: Pool,
    /// HTTP/2.
    pub http2: Http2,
    /// Calls at once.
    pub queue: Queue,
    /// How much is taken of an answer.
    pub bounds: Bounds,
    /// What becomes of an answer whose client goes away.
    pub abandoned: Abandoned,
    /// How often it is asked how busy it is, where its kind tells that; zero: never.
    pub load_every: Duration,
    /// Where it publishes what it does to its cache.
    pub cache_feed: Option<CacheFeed>,
    /// Which addresses in calls it may be handed. `None`: as its kind and its own address suggest ([`UpstreamSpec::url_policy`]).
    pub urls: Option<UrlPolicy>,
    /// Callers see what its cache had, also where it separates no tenants.
    pub cache_disclosed: bool,
    /// The extras that calls may ask for without a price of their own.
    pub allow_unpriced: Vec<&'static str>,
}

/// How long is waited for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection with TLS.
    pub connect: Duration,
    /// For the head of a stream, from the call on.
    pub head: Duration,
    /// For the end of a whole answer, from the call on.
    pub whole: Duration,
    /// For the next bytes of a stream.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(60),
            whole: Duration::from_secs(600),
            idle: Duration::from_secs(60),
        }
    }
}

/// Connections that wait for the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// So many at most.
    pub idle_connections: usize,
    /// So long; `None`: as the kind's servers do ([`Kind::pool_idle`]).
    pub idle_for: Option<Duration>,
}

impl Default for Pool {
    fn default() -> Self {
        Self { idle_connections: 64, idle_for: None }
    }
}

/// When HTTP/2 is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UseHttp2 {
    /// Where TLS agrees on it.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, also without TLS.
    Always,
}

/// HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2 {
    /// When it is spoken.
    pub when: UseHttp2,
    /// How often a connection with calls on it is pinged; one that does not answer for as long is closed. `None`: never.
    pub ping: Option<Duration>,
}

impl Default for Http2 {
    fn default() -> Self {
        Self { when: UseHttp2::default(), ping: Some(Duration::from_secs(20)) }
    }
}

/// Calls at once, and those that wait for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queue {
    /// Calls under way; `None`: without a bound.
    pub in_flight: Option<usize>,
    /// Calls that wait for a place, fairly by tenant. Beyond that they are refused.
    pub waiting: usize,
    /// How long one waits.
    pub wait: Duration,
}

impl Default for Queue {
    fn default() -> Self {
        Self { in_flight: None, waiting: 256, wait: Duration::from_secs(10) }
    }
}

/// How much is taken of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of its header section, at most [`Bounds::MOST_HEAD_BYTES`].
    pub head_bytes: usize,
    /// Bytes of one event of a stream.
    pub event_bytes: usize,
    /// Bytes of a whole answer.
    pub body_bytes: usize,
    /// Bytes of the body of an error. More is left unread.
    pub error_bytes: usize,
}

impl Bounds {
    /// More bytes of headers are never read, whatever is configured.
    pub const MOST_HEAD_BYTES: usize = 400 << 10;
}

impl Default for Bounds {
    fn default() -> Self {
        Self { head_bytes: 64 << 10, event_bytes: 8 << 20, body_bytes: 64 << 20, error_bytes: 64 << 10 }
    }
}

/// Headers that are ours to say.
const RESERVED: [&str; 8] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "upgrade",
    "accept-encoding",
    "x-request-id",
];

impl UpstreamSpec {
    /// How often a server is asked how busy it is, unless something else is said.
    pub const LOAD_EVERY: Duration = Duration::from_secs(1);

    /// A server with the defaults of everything else.
    pub fn new(name: &str, kind: Kind, url: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            url: url.to_owned(),
            ip: None,
            key: None,
            worker_secret: None,
            headers: Vec::new(),
            timeouts: Timeouts::default(),
            extra_roots_pem: None,
            proxy: None,
            unused_proxy: None,
            pool: Pool::default(),
            http2: Http2::default(),
            queue: Queue::default(),
            bounds: Bounds::default(),
            abandoned: Abandoned::default(),
            load_every: Self::LOAD_EVERY,
            cache_feed: None,
            urls: None,
            cache_disclosed: false,
            allow_unpriced: Vec::new(),
        }
    }

    /// The name and port in `url`, where it is a name that is looked up here: no address, and no proxy does it.
    pub fn looked_up(&self) -> Option<(String, u16)> {
        let address = Address::parse(&self.url).ok()?;
        let (host, port) = address.host();
        let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        (!is_address && self.ip.is_none() && self.proxy.is_none()).then(|| (host.to_owned(), port))
    }

    /// Whether several addresses of the name are several servers. Those of a provider on the public internet are one: its own balancers
    /// stand behind each of them.
    pub fn has_servers_at(&self, ips: &[IpAddr]) -> bool {
        let is_own = self.kind.runs_inside() || self.kind == Kind::Headrace;
        is_own || !ips.iter().copied().any(is_public)
    }

    /// The server at one of the addresses of the name. TLS and the `host` header name it as before.
    #[must_use]
    pub fn at(&self, ip: IpAddr) -> Self {
        let name = self.looked_up().map(|(name, _)| name).unwrap_or_default();
        let host = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let there = |feed: &String| {
            let port = feed.strip_prefix("tcp://")?.strip_prefix(name.as_str())?.strip_prefix(':')?;
            Some(format!("tcp://{host}:{port}"))
        };
        // Events of a place that is not named so are those of one server only, and it is not known which.
        let cache_feed = self.cache_feed.as_ref().and_then(|feed| {
            let replay = feed.replay.as_ref().and_then(there);
            Some(CacheFeed { events: there(&feed.events)?, replay })
        });
        Self { ip: Some(ip), cache_feed, ..self.clone() }
    }

    /// The name of the upstream, with its address if it is one of several.
    pub fn label(&self) -> String {
        let Self { name, ip, .. } = self;
        ip.map_or_else(|| name.clone(), |ip| format!("{name}@{ip}"))
    }

    /// Which addresses in calls it may be handed: what was configured, or else none for servers inside the operator's network, and
    /// public ones for all others.
    pub fn url_policy(&self) -> UrlPolicy {
        let is_public = || Address::parse(&self.url).is_ok_and(|address| is_public_host(address.host().0));
        match &self.urls {
            Some(policy) => policy.clone(),
            None if !self.kind.runs_inside() && is_public() => UrlPolicy::Public,
            None => UrlPolicy::Off,
        }
    }

    /// How its cache of prefixes separates tenants.
    pub const fn prefix_cache(&self) -> PrefixCache {
        match self.kind.prefix_cache() {
            PrefixCache::Hidden if self.cache_disclosed => PrefixCache::Disclosed,
            cache => cache,
        }
    }

    /// Everything that is wrong with it, in words. Nothing is asked of the server.
    pub fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.name.is_empty() {
            wrong.push("an upstream needs a name".to_owned());
        }
        wrong.extend(Address::parse(&self.url).err());
        if let Some(key) = &self.key {
            wrong.extend(check_key(key));
        }
        if let Some(secret) = &self.worker_secret {
            wrong.extend(Secret::new(secret).err().map(|fault| format!("as a worker: {fault}")));
            // Else a long prefill would look like silence.
            let least = 2 * BEAT;
            if self.timeouts.idle < least {
                let least = least.as_secs();
                wrong.push(format!(
                    "`timeouts.idle` is less than {least} s, in which a worker shows that it lives"
                ));
            }
            if self.kind != Kind::Headrace {
                let kind = self.kind;
                wrong
                    .push(format!("a worker's secret is for another Headrace, and this is of kind `{kind}`"));
            }
        }
        for (name, value) in &self.headers {
            wrong.extend(self.check_header(name, value));
        }
        if let Some(pem) = &self.extra_roots_pem {
            wrong.extend(certificates(pem).err());
        }
        if let Some(url) = &self.proxy {
            wrong.extend(proxy(url).err());
        }
        if let Some(feed) = &self.cache_feed {
            wrong.extend(feed.check());
            if !matches!(self.kind, Kind::Vllm | Kind::Sglang) {
                wrong.push(format!("`kv_events`: servers of kind `{}` publish none", self.kind));
            }
        }
        self.check_times(&mut wrong);
        self.check_bounds(&mut wrong);
        wrong
    }

    fn check_header(&self, name: &str, value: &SecretString) -> Option<String> {
        let Ok(parsed) = HeaderName::try_from(name) else {
            return Some(format!("`{name}` is no name of a header"));
        };
        if HeaderValue::from_str(value.expose_secret()).is_err() {
            return Some(format!("the value of the header `{name}` has characters that no header may have"));
        }
        if RESERVED.contains(&parsed.as_str()) {
            return Some(format!("the header `{name}` is ours to say; leave it out"));
        }
        let is_key = matches!(parsed.as_str(), "authorization" | "x-api-key");
        (is_key && self.key.is_some())
            .then(|| format!("there is a key and a header `{name}` as well; give one of them"))
    }

    fn check_times(&self, wrong: &mut Vec<String>) {
        let Timeouts { connect, head, whole, idle } = self.timeouts;
        let times = [
            ("timeouts.connect", Some(connect)),
            ("timeouts.head", Some(head)),
            ("timeouts.whole", Some(whole)),
            ("timeouts.idle", Some(idle)),
            ("http2.ping", self.http2.ping),
        ];
        for (what, time) in times {
            if time.is_some_and(|time| time.is_zero()) {
                wrong.push(format!("`{what}` is 0, and nothing would ever come in time"));
            }
        }
    }

    fn check_bounds(&self, wrong: &mut Vec<String>) {
        let Bounds { head_bytes, event_bytes, body_bytes, error_bytes } = self.bounds;
        let most = Bounds::MOST_HEAD_BYTES;
        for (what, bytes, least, most) in [
            ("head_bytes", head_bytes, 1 << 10, most),
            ("event_bytes", event_bytes, 1 << 10, usize::MAX),
            ("body_bytes", body_bytes, 1 << 10, usize::MAX),
            ("error_bytes", error_bytes, 256, usize::MAX),
        ] {
            if bytes < least || bytes > most {
                wrong.push(format!("`bounds.{what}` is {bytes}; it must be from {least} to {most}"));
            }
        }
        if self.queue.in_flight == Some(0) {
            wrong.push("`queue.in_flight` is 0: no call could ever be made".to_owned());
        }
    }
}

fn check_key(key: &SecretString) -> Option<String> {
    let key = key.expose_secret();
    if key.is_empty() {
        return Some("the key is empty".to_owned());
    }
    let fits = key.bytes().all(|byte| byte.is_ascii_graphic());
    (!fits).then(|| "the key has characters that no key has (a blank, or the end of a line?)".to_owned())
}

/// The certificates of a PEM text.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<reqwest::Certificate>, String> {
    let found = reqwest::Certificate::from_pem_bundle(pem).ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| "the file of the authority holds no certificate in PEM".to_owned())
}

/// The proxy of an address.
pub(crate) fn proxy(url: &SecretString) -> Result<reqwest::Proxy, String> {
    let text = url.expose_secret();
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    if !["http", "https", "socks5", "socks5h"].contains(&scheme) {
        return Err(
            "the proxy's address must begin with http://, https://, socks5:// or socks5h://".to_owned()
        );
    }
    reqwest::Proxy::all(text).map_err(|_| "the proxy's address is none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_of_defaults_is_right() {
        for kind in Kind::ALL {
            assert_eq!(UpstreamSpec::new("a", kind, "http://127.0.0.1:8000").check(), [""; 0]);
        }
    }

    #[test]
    fn every_fault_is_told_at_once_and_no_secret_with_it() {
        let mut spec = UpstreamSpec::new("", Kind::OpenAi, "ftp://h");
        spec.key = Some("sk-secret\n".into());
        spec.worker_secret = Some("secret".into());
        spec.headers = vec![
            ("bad name".into(), "v".into()),
            ("x-good".into(), "secret\0".into()),
            ("Host".into(), "h".into()),
            ("Authorization".into(), "Bearer secret".into()),
        ];
        spec.extra_roots_pem = Some(b"no pem".to_vec());
        spec.proxy = Some("gopher://me:secret@h".into());
        spec.timeouts.idle = Duration::ZERO;
        spec.http2.ping = Some(Duration::ZERO);
        spec.bounds.head_bytes = 1 << 30;
        spec.bounds.error_bytes = 0;
        spec.queue.in_flight = Some(0);
        let replay = Some("tcp://h:0".to_owned());
        spec.cache_feed = Some(CacheFeed { events: "http://h:5557".to_owned(), replay });
        let wrong = spec.check();
        for (fault, words) in wrong.iter().zip([
            "needs a name",
            "must begin with http://",
            "the key has characters",
            "as a worker: the secret has 6 characters",
            "`timeouts.idle` is less than 2 s",
            "this is of kind `openai`",
            "`bad name` is no name",
            "the value of the header `x-good`",
            "the header `Host` is ours",
            "a key and a header `Authorization`",
            "no certificate in PEM",
            "the proxy's address must begin",
            "`kv_events`: `http://h:5557` is no place where events are published; write tcp://HOST:PORT",
            "`kv_replay`: `tcp://h:0` is no place",
            "`kv_events`: servers of kind `openai` publish none",
            "`timeouts.idle` is 0",
            "`http2.ping` is 0",
            "`bounds.head_bytes` is 1073741824",
            "`bounds.error_bytes` is 0",
            "`queue.in_flight` is 0",
        ]) {
            assert!(fault.contains(words), "{fault} should say {words}");
        }
        assert_eq!(wrong.len(), 20, "{wrong:#?}");
        let shown = format!("{spec:?}{wrong:?}").replace("worker_secret", "").replace("the secret has", "");
        let shown = shown.replace("worker's secret is", "");
        assert!(!shown.contains("secret"), "{shown}");
    }
}
