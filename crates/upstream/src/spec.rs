//! The configuration of an upstream: plain data with defaults and a check, before anything is built. Must not know
//! files, the environment or a connection.

use std::net::IpAddr;
use std::time::Duration;

use headrace_engine_api::{AbandonPolicy, PrefixCache};
use headrace_worker::{ALIVE_PERIOD, WorkerSecret};
use http::{HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use crate::address::ServerAddress;
use crate::cache_feed::CacheFeed;
use crate::kind::UpstreamKind;
use crate::urls::{UrlPolicy, is_public, is_public_host};

/// One server.
#[derive(Debug, Clone)]
pub struct UpstreamSpec {
    /// The server's name in our configuration.
    pub name: String,
    /// The kind of the server.
    pub kind: UpstreamKind,
    /// The server's address, with or without `/v1`.
    pub url: String,
    /// The IP address to connect to, if the name in `url` has several. `None` if the name is looked up.
    pub ip: Option<IpAddr>,
    /// Our key at the server. It is sent in `x-api-key` to servers of kind Anthropic, and as a bearer token to all
    /// others.
    pub key: Option<SecretString>,
    /// The secret that signs the tickets of jobs. A Headrace with the same secret is used as a worker.
    pub worker_secret: Option<SecretString>,
    /// Additional headers of every call. Their values may be secret.
    pub headers: Vec<(String, SecretString)>,
    /// Timeouts of calls.
    pub timeouts: UpstreamTimeouts,
    /// Additional root certificates in PEM, besides those of this machine.
    pub extra_roots_pem: Option<Vec<u8>>,
    /// A proxy (`http`, `https`, `socks5`, `socks5h`), with user and password if it requires them. Proxies of the
    /// environment are not used.
    pub proxy: Option<SecretString>,
    /// The environment variable that names a proxy, such as `HTTPS_PROXY`, if `proxy` is not set. Only error messages
    /// use it.
    pub unused_proxy: Option<&'static str>,
    /// Idle connections that wait for the next call.
    pub pool: PoolConfig,
    /// HTTP/2 settings.
    pub http2: Http2Config,
    /// Limits on parallel and waiting calls.
    pub queue: QueueConfig,
    /// Limits on the size of an answer.
    pub bounds: AnswerLimits,
    /// What happens to an answer whose client goes away.
    pub abandoned: AbandonPolicy,
    /// How often the load is polled, if the kind reports it. Zero switches polling off.
    pub load_every: Duration,
    /// Where the server publishes changes of its cache.
    pub cache_feed: Option<CacheFeed>,
    /// Which URLs in calls may be sent to the server. `None` derives the policy from the kind and the address
    /// ([`UpstreamSpec::url_policy`]).
    pub urls: Option<UrlPolicy>,
    /// Whether callers see how much of their prompt the server's cache had, even if that cache does not separate
    /// tenants.
    pub cache_disclosed: bool,
    /// The extras that calls may request without a price of their own.
    pub allow_unpriced: Vec<&'static str>,
}

/// Timeouts of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpstreamTimeouts {
    /// Until the connection is established, including TLS.
    pub connect: Duration,
    /// From the call to the head of a streamed answer.
    pub head: Duration,
    /// From the call to the end of a whole answer.
    pub whole: Duration,
    /// Until the next bytes of a stream.
    pub idle: Duration,
}

impl Default for UpstreamTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            head: Duration::from_secs(60),
            whole: Duration::from_secs(600),
            idle: Duration::from_secs(60),
        }
    }
}

/// Idle connections that wait for the next call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Maximum number of idle connections.
    pub idle_connections: usize,
    /// Maximum idle time. `None` uses the default of the kind ([`UpstreamKind::pool_idle`]).
    pub idle_for: Option<Duration>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self { idle_connections: 64, idle_for: None }
    }
}

/// When HTTP/2 is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UseHttp2 {
    /// If the TLS handshake negotiates it.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, even without TLS.
    Always,
}

/// HTTP/2 settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http2Config {
    /// When HTTP/2 is used.
    pub when: UseHttp2,
    /// Interval of pings on a connection with calls. A connection that does not answer within that time is closed.
    /// `None` sends no pings.
    pub ping: Option<Duration>,
}

impl Default for Http2Config {
    fn default() -> Self {
        Self { when: UseHttp2::default(), ping: Some(Duration::from_secs(20)) }
    }
}

/// Limits on parallel and waiting calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueConfig {
    /// Maximum number of calls in progress. `None` for no limit.
    pub in_flight: Option<usize>,
    /// Maximum number of calls that wait for a place, fairly by tenant. Further calls are refused.
    pub waiting: usize,
    /// Maximum wait for a place.
    pub wait: Duration,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self { in_flight: None, waiting: 256, wait: Duration::from_secs(10) }
    }
}

/// Limits on the size of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerLimits {
    /// Bytes of the header section, at most [`AnswerLimits::MOST_HEAD_BYTES`].
    pub head_bytes: usize,
    /// Bytes of one event of a stream.
    pub event_bytes: usize,
    /// Bytes of a whole answer.
    pub body_bytes: usize,
    /// Bytes of the body of an error. The rest is left unread.
    pub error_bytes: usize,
}

impl AnswerLimits {
    /// Upper limit for `head_bytes` that no configuration can exceed.
    pub const MOST_HEAD_BYTES: usize = 400 << 10;
}

impl Default for AnswerLimits {
    fn default() -> Self {
        Self { head_bytes: 64 << 10, event_bytes: 8 << 20, body_bytes: 64 << 20, error_bytes: 64 << 10 }
    }
}

/// Headers that the configuration may not set.
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
    /// Default interval of load polling.
    pub const LOAD_EVERY: Duration = Duration::from_secs(1);

    /// A server with defaults for everything else.
    pub fn new(name: &str, kind: UpstreamKind, url: &str) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            url: url.to_owned(),
            ip: None,
            key: None,
            worker_secret: None,
            headers: Vec::new(),
            timeouts: UpstreamTimeouts::default(),
            extra_roots_pem: None,
            proxy: None,
            unused_proxy: None,
            pool: PoolConfig::default(),
            http2: Http2Config::default(),
            queue: QueueConfig::default(),
            bounds: AnswerLimits::default(),
            abandoned: AbandonPolicy::default(),
            load_every: Self::LOAD_EVERY,
            cache_feed: None,
            urls: None,
            cache_disclosed: false,
            allow_unpriced: Vec::new(),
        }
    }

    /// Returns name and port of `url`, if the name is looked up here: it is not an IP address, `ip` is not set, and no
    /// proxy resolves it.
    pub fn looked_up(&self) -> Option<(String, u16)> {
        let address = ServerAddress::parse(&self.url).ok()?;
        let (host, port) = address.host();
        let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        (!is_address && self.ip.is_none() && self.proxy.is_none()).then(|| (host.to_owned(), port))
    }

    /// Returns whether several addresses of the name are several servers. Addresses of a provider on the public
    /// internet are one server, because each leads to the provider's own load balancers.
    pub fn has_servers_at(&self, ips: &[IpAddr]) -> bool {
        let is_own = self.kind.runs_inside() || self.kind == UpstreamKind::Headrace;
        is_own || !ips.iter().copied().any(is_public)
    }

    /// Returns the spec of the server at one address of the name. TLS and the `host` header keep the name.
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
        // A feed under another name belongs to one unknown server, so it is dropped.
        let cache_feed = self.cache_feed.as_ref().and_then(|feed| {
            let replay = feed.replay.as_ref().and_then(there);
            Some(CacheFeed { events: there(&feed.events)?, replay })
        });
        Self { ip: Some(ip), cache_feed, ..self.clone() }
    }

    /// Returns the name of the upstream, with its address if it is one of several.
    pub fn label(&self) -> String {
        let Self { name, ip, .. } = self;
        ip.map_or_else(|| name.clone(), |ip| format!("{name}@{ip}"))
    }

    /// Returns which URLs in calls may be sent to the server. Without a configured policy, servers inside the
    /// operator's network get none, and all others get public ones.
    pub fn url_policy(&self) -> UrlPolicy {
        let is_public =
            || ServerAddress::parse(&self.url).is_ok_and(|address| is_public_host(address.host().0));
        match &self.urls {
            Some(policy) => policy.clone(),
            None if !self.kind.runs_inside() && is_public() => UrlPolicy::Public,
            None => UrlPolicy::Off,
        }
    }

    /// Returns how the server's prefix cache separates tenants.
    pub const fn prefix_cache(&self) -> PrefixCache {
        match self.kind.prefix_cache() {
            PrefixCache::Hidden if self.cache_disclosed => PrefixCache::Disclosed,
            cache => cache,
        }
    }

    /// Returns everything that is wrong with the spec, as text. Sends nothing to the server.
    pub fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.name.is_empty() {
            wrong.push("an upstream needs a name".to_owned());
        }
        wrong.extend(ServerAddress::parse(&self.url).err());
        if let Some(key) = &self.key {
            wrong.extend(check_key(key));
        }
        if let Some(secret) = &self.worker_secret {
            wrong.extend(WorkerSecret::new(secret).err().map(|fault| format!("as a worker: {fault}")));
            // A shorter timeout would take a long prefill for silence.
            let least = 2 * ALIVE_PERIOD;
            if self.timeouts.idle < least {
                let least = least.as_secs();
                wrong.push(format!(
                    "`timeouts.idle` is less than {least} s, in which a worker shows that it lives"
                ));
            }
            if self.kind != UpstreamKind::Headrace {
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
            if !matches!(self.kind, UpstreamKind::Vllm | UpstreamKind::Sglang) {
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
        let UpstreamTimeouts { connect, head, whole, idle } = self.timeouts;
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
        let AnswerLimits { head_bytes, event_bytes, body_bytes, error_bytes } = self.bounds;
        let most = AnswerLimits::MOST_HEAD_BYTES;
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

/// Parses the certificates of a PEM text.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<reqwest::Certificate>, String> {
    let found = reqwest::Certificate::from_pem_bundle(pem).ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| "the file of the authority holds no certificate in PEM".to_owned())
}

/// Parses the address of a proxy.
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
        for kind in UpstreamKind::ALL {
            assert_eq!(UpstreamSpec::new("a", kind, "http://127.0.0.1:8000").check(), [""; 0]);
        }
    }

    #[test]
    fn every_fault_is_told_at_once_and_no_secret_with_it() {
        let mut spec = UpstreamSpec::new("", UpstreamKind::OpenAi, "ftp://h");
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
