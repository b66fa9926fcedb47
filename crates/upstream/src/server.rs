//! State that all calls to one server share: client, address, headers, places, counters and the drain flag. Must not
//! know a single call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use headrace_domain::{CacheLabel, Dialect, Endpoint};
use headrace_engine_api::{EngineHealth, RelayError};
use headrace_worker::WorkerSecret;
use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};

use crate::address::ServerAddress;
use crate::client::client;
use crate::figures::ServerCounters;
use crate::gate::ConcurrencyGate;
use crate::kind::UpstreamKind;
use crate::load_gauge::ServerLoads;
use crate::plaintext_pool::PlaintextPool;
use crate::redact::SecretRedactor;
use crate::spec::UpstreamSpec;
use crate::worker_link::WorkerLink;

/// The version of Anthropic's API that is used if the caller names none.
const ANTHROPIC_VERSION: HeaderValue = HeaderValue::from_static("2023-06-01");

/// The header that identifies a call in the logs of both sides.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// One server.
pub(crate) struct UpstreamServer {
    pub(crate) spec: UpstreamSpec,
    client: ArcSwap<reqwest::Client>,
    /// The plaintext pool, if calls use one.
    pub(crate) clear: Option<Arc<PlaintextPool>>,
    pub(crate) address: ServerAddress,
    pub(crate) gate: Arc<ConcurrencyGate>,
    pub(crate) counters: ServerCounters,
    pub(crate) redactor: SecretRedactor,
    pub(crate) loads: ServerLoads,
    /// Why the state of its cache is unknown, if its events are followed.
    pub(crate) cache_fault: Mutex<Option<String>>,
    /// The connections for jobs, if the server is used as a worker.
    pub(crate) line: Option<WorkerLink>,
    /// Headers of every request.
    headers: HeaderMap,
    /// Headers of calls, built once.
    calls: [(Dialect, bool, HeaderMap); 4],
    /// URLs of calls, by endpoint.
    chat: Url,
    completions: Url,
    embeddings: Url,
    rerank: Url,
    score: Url,
    messages: Url,
    count: Url,
    responses: Url,
    drained: AtomicBool,
    /// Set once the server has answered that it has no endpoint for generation from ids.
    lacks_generate: AtomicBool,
    /// Cache label of the first call by ids. `has_several` is set once a call had another label.
    first_label: OnceLock<CacheLabel>,
    has_several: AtomicBool,
}

impl UpstreamServer {
    /// Builds a server from a spec.
    ///
    /// # Errors
    /// Everything that is wrong with the spec, as text.
    pub(crate) fn new(spec: UpstreamSpec) -> Result<Self, Vec<String>> {
        let wrong = spec.check();
        if !wrong.is_empty() {
            return Err(wrong);
        }
        let one = |error| vec![error];
        let address = ServerAddress::parse(&spec.url).map_err(one)?;
        let client = client(&spec, address.is_tls()).map_err(one)?;
        let secret = spec.worker_secret.as_ref().and_then(|secret| WorkerSecret::new(secret).ok());
        let line =
            secret.map(|secret| WorkerLink::new(&spec, secret, address.is_tls())).transpose().map_err(one)?;
        let clear = PlaintextPool::of(&spec, &address);
        let headers = headers(&spec).map_err(one)?;
        let of_calls = |dialect, stream| {
            (dialect, stream, headers_of_calls(&headers, clear.as_deref(), dialect, stream))
        };
        let calls = [
            of_calls(Dialect::OpenAi, false),
            of_calls(Dialect::OpenAi, true),
            of_calls(Dialect::Anthropic, false),
            of_calls(Dialect::Anthropic, true),
        ];
        let secrets = spec.key.iter().chain(spec.headers.iter().map(|(_, value)| value)).cloned();
        Ok(Self {
            client: ArcSwap::from_pointee(client),
            clear,
            calls,
            gate: Arc::new(ConcurrencyGate::new(spec.queue)),
            counters: ServerCounters::new(),
            redactor: SecretRedactor::new(secrets),
            loads: ServerLoads::new(),
            cache_fault: Mutex::default(),
            line,
            headers,
            chat: address.api("chat/completions"),
            completions: address.api("completions"),
            messages: address.api("messages"),
            count: address.api("messages/count_tokens"),
            responses: address.api("responses"),
            embeddings: address.api("embeddings"),
            rerank: address.api("rerank"),
            score: address.api("score"),
            drained: AtomicBool::new(false),
            lacks_generate: AtomicBool::new(false),
            first_label: OnceLock::new(),
            has_several: AtomicBool::new(false),
            address,
            spec,
        })
    }

    /// Returns the HTTP client for calls. It owns the pool of idle connections.
    pub(crate) fn client(&self) -> Arc<reqwest::Client> {
        self.client.load_full()
    }

    /// Makes new calls use new connections. Open ones close after their calls.
    pub(crate) fn renew_clients(&self) {
        if let Some(clear) = &self.clear {
            clear.renew();
        }
        // A client that was built once can be built again. If that fails, the previous one stays.
        if let Ok(client) = client(&self.spec, self.address.is_tls()) {
            self.client.store(Arc::new(client));
        }
        if let Some(line) = &self.line {
            line.renew();
        }
    }

    pub(crate) fn url(&self, endpoint: Endpoint) -> &Url {
        match endpoint {
            Endpoint::ChatCompletions => &self.chat,
            Endpoint::Completions => &self.completions,
            Endpoint::Messages => &self.messages,
            Endpoint::Responses => &self.responses,
            Endpoint::Embeddings => &self.embeddings,
            Endpoint::Rerank => &self.rerank,
            Endpoint::Score => &self.score,
        }
    }

    /// Returns the URL that counts the tokens of a message.
    pub(crate) const fn count_url(&self) -> &Url {
        &self.count
    }

    /// Returns the headers of a request in a dialect, including the key.
    pub(crate) fn headers(&self, dialect: Dialect) -> HeaderMap {
        in_dialect(&self.headers, dialect)
    }

    /// Returns the headers of a call in a dialect, including the key and `id`.
    pub(crate) fn call_headers(&self, dialect: Dialect, stream: bool, id: HeaderValue) -> HeaderMap {
        let found = self.calls.iter().find(|(spoken, streams, _)| (*spoken, *streams) == (dialect, stream));
        let mut headers = found.map_or_else(HeaderMap::new, |(_, _, headers)| headers.clone());
        headers.insert(REQUEST_ID, id);
        headers
    }

    /// Returns the headers of a request that is signed in another way: all headers except the key.
    pub(crate) fn own_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.remove(AUTHORIZATION);
        headers
    }

    /// Returns whether the configuration sets this header itself.
    pub(crate) fn has_own(&self, header: &str) -> bool {
        self.spec.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(header))
    }

    pub(crate) fn lacks_generate(&self) -> bool {
        self.lacks_generate.load(Ordering::Relaxed)
    }

    pub(crate) fn set_lacks_generate(&self) {
        self.lacks_generate.store(true, Ordering::Relaxed);
    }

    /// Records the label of a call by ids. Returns whether all calls so far had that label.
    pub(crate) fn is_alone(&self, label: CacheLabel) -> bool {
        if *self.first_label.get_or_init(|| label) != label {
            self.has_several.store(true, Ordering::Relaxed);
        }
        !self.has_several.load(Ordering::Relaxed)
    }

    pub(crate) fn set_drained(&self, drained: bool) {
        self.drained.store(drained, Ordering::Release);
    }

    pub(crate) fn health(&self) -> EngineHealth {
        if self.drained.load(Ordering::Acquire) { EngineHealth::Draining } else { EngineHealth::Up }
    }

    /// Checks that the server takes calls.
    ///
    /// # Errors
    /// [`RelayError::Unavailable`] while the server is drained.
    pub(crate) fn takes_calls(&self) -> Result<(), RelayError> {
        if self.health().is_up() {
            return Ok(());
        }
        let why = format!("`{}` is drained by an operator", self.spec.name);
        Err(RelayError::Unavailable { why, retry_after: None })
    }
}

fn in_dialect(headers: &HeaderMap, dialect: Dialect) -> HeaderMap {
    let mut headers = headers.clone();
    if dialect == Dialect::Anthropic {
        headers.entry("anthropic-version").or_insert(ANTHROPIC_VERSION);
    }
    headers
}

/// Returns all headers of calls. The header that differs between calls has a placeholder, so that a copy needs no
/// further allocation.
fn headers_of_calls(
    own: &HeaderMap,
    clear: Option<&PlaintextPool>,
    dialect: Dialect,
    stream: bool,
) -> HeaderMap {
    let mut headers = in_dialect(own, dialect);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    let accept = if stream { "text/event-stream, application/json" } else { "application/json" };
    headers.entry(ACCEPT).or_insert(HeaderValue::from_static(accept));
    headers.insert(REQUEST_ID, HeaderValue::from_static(""));
    if let Some(clear) = clear {
        headers.entry(HOST).or_insert_with(|| clear.host().clone());
    }
    headers
}

fn headers(spec: &UpstreamSpec) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("headrace/", env!("CARGO_PKG_VERSION"))));
    if let Some(key) = &spec.key {
        match spec.kind {
            UpstreamKind::Anthropic => headers.insert("x-api-key", secret(key)?),
            _ => headers.insert(AUTHORIZATION, secret(&format!("Bearer {}", key.expose_secret()).into())?),
        };
    }
    for (name, value) in &spec.headers {
        let name =
            HeaderName::try_from(name.as_str()).map_err(|_| format!("`{name}` is no name of a header"))?;
        headers.insert(name, secret(value)?);
    }
    Ok(headers)
}

fn secret(value: &SecretString) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_str(value.expose_secret());
    let mut value = value.map_err(|_| "a key or header has characters that no header may have".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}
