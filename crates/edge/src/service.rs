//! From one request to one response: the route, the edge's own refusals, the call service's answer. Knows HTTP's terms.
//! The call service decides who may do what.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use headrace_call_api::{
    Admitted, CallAnswer, CallHead, CallService, Credentials, EdgeRefusal, InternalApi, InternalHead,
    MemoryAccount, ObjectAsk, ObjectMethod, PeerAddress, Question,
};
use headrace_domain::{Clock, ConnectionTrace, Dialect, Endpoint, UnixNanos};
use http::header::{self, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};

use crate::activity::{ConnectionActivity, InFlight, ServerWish};
use crate::answers::{cut_short, health, ready, response};
use crate::body::{FrameSource, OutBody};
use crate::caller_headers::{CallerHeaders, joined, single};
use crate::connection::MOST_HTTP1_HEADERS;
use crate::cors::AllowedOrigins;
use crate::handshake::{UpgradedCaller, is_websocket, switched};
use crate::home::HomePage;
use crate::routes::{self, EdgeRoute, RouteAccess, RouteTarget};
use crate::sockets::{NoPlace, WebSocketTable};
use crate::stats::{EdgeStats, count};
use crate::upload::{BodyLimits, RequestUpload, head_bytes};

/// Reason for a server that still accepts calls to be not ready.
pub const STOPS_SOON: &str = "the server stops soon: new calls are taken for `server.drain_delay` only";

/// State that all connections share.
pub(crate) struct EdgeShared<F> {
    pub(crate) front: Arc<F>,
    /// The internal API, if there is one.
    pub(crate) internal_api: Option<Arc<dyn InternalApi>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: BodyLimits,
    pub(crate) max_header_bytes: usize,
    pub(crate) memory: MemoryAccount,
    pub(crate) stats: Arc<EdgeStats>,
    /// Places for responses sockets, by key.
    pub(crate) sockets: Arc<WebSocketTable>,
    /// The origins whose pages may call.
    pub(crate) origins: AllowedOrigins,
    /// The server stops soon. It still accepts calls, but is not ready for new clients.
    pub(crate) stops: Arc<AtomicBool>,
    /// The page at `/`.
    pub(crate) home: HomePage,
}

impl<F: CallService> EdgeShared<F> {
    /// Returns why calls, or calls for `model`, would not be served. Empty if they would be served.
    pub(crate) fn not_ready(&self, model: Option<&str>) -> Vec<String> {
        let mut why = self.front.not_ready(model);
        if self.stops.load(Ordering::Acquire) {
            why.push(STOPS_SOON.to_owned());
        }
        why
    }
}

/// Answers one request. `number` counts the requests of its connection.
pub(crate) async fn answer<F: CallService>(
    shared: Arc<EdgeShared<F>>,
    (peer, turns): (PeerAddress, Arc<OnceLock<UpgradedCaller>>),
    (number, in_flight): (u64, InFlight),
    request: Request<Incoming>,
) -> Result<Response<OutBody<FrameSource<F::Stream>>>, Infallible> {
    let started = HeadTime { wall: shared.clock.now(), mono_ns: shared.clock.monotonic_nanos() };
    count(&shared.stats.requests);
    let (parts, body) = request.into_parts();
    let (is_http1, is_head) = (parts.version < Version::HTTP_2, parts.method == Method::HEAD);
    let activity = in_flight.activity();
    let mut asked = RequestInProgress {
        shared: &shared,
        peer,
        activity,
        parts: &parts,
        started,
        connection: ConnectionTrace { requests_before: number, open_ns: activity.age_ns() },
        body_was_read: body.is_end_stream(),
        body,
        cut_short: false,
        turns: &turns,
    };
    let reply = if is_http1 && activity.is_ambiguous(number) {
        asked.body_was_read = false;
        asked.refuse(&EdgeRefusal::AmbiguousLength, None).map(FrameSource::Service)
    } else if let Some(hosts) = wrong_hosts(&parts) {
        asked.body_was_read = false;
        asked.refuse(&EdgeRefusal::BadHost { hosts }, None).map(FrameSource::Service)
    } else if !is_http1 && head_bytes(&parts) > shared.max_header_bytes {
        let limit_bytes = shared.max_header_bytes;
        let refusal = EdgeRefusal::HeadTooLarge { limit_bytes, most_headers: MOST_HTTP1_HEADERS };
        asked.refuse(&refusal, None).map(FrameSource::Service)
    } else {
        asked.reply().await
    };
    let (body_left, cut_short) = (!asked.body_was_read, asked.cut_short);
    drop(asked);
    if cut_short {
        activity.wish(ServerWish::Finish);
    }
    if reply.status == StatusCode::SWITCHING_PROTOCOLS.as_u16() {
        activity.switch();
        return Ok(switched(&parts));
    }
    // After a request for another protocol, the following bytes may not be HTTP.
    let close = is_http1
        && (body_left
            || cut_short
            || activity.has_been_refused_enough()
            || parts.headers.contains_key(header::UPGRADE));
    if close {
        // The rest of the body would be taken for the next request's head.
        activity.leave_body_unread();
    }
    let retires = activity.wished() == ServerWish::Retire;
    if retires && !is_http1 && number == 0 {
        // The connection announces its end now that its first request has arrived.
        activity.remind();
    }
    let mut response = response(reply, in_flight, is_head);
    shared.origins.mark(&parts.headers, response.headers_mut());
    if close || (retires && is_http1) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// The time at which a request's headers were complete.
#[derive(Clone, Copy)]
struct HeadTime {
    wall: UnixNanos,
    mono_ns: u64,
}

/// A request that is being answered.
struct RequestInProgress<'a, F> {
    shared: &'a EdgeShared<F>,
    peer: PeerAddress,
    activity: &'a Arc<ConnectionActivity>,
    parts: &'a Parts,
    started: HeadTime,
    connection: ConnectionTrace,
    body: Incoming,
    body_was_read: bool,
    /// The peer has used up its allowance of refusals, so it got the short answer.
    cut_short: bool,
    /// Set if the connection continues as a responses socket.
    turns: &'a OnceLock<UpgradedCaller>,
}

impl<F: CallService> RequestInProgress<'_, F> {
    async fn reply(&mut self) -> CallAnswer<FrameSource<F::Stream>> {
        let found = routes::find(self.parts.uri.path());
        if let (Some((EdgeRoute { target: RouteTarget::InternalApi, .. }, _)), Some(internal_api)) =
            (found, &self.shared.internal_api)
        {
            return Box::pin(self.ask_internal_api(&**internal_api)).await;
        }
        self.ask_front(found).await.map(FrameSource::Service)
    }

    async fn ask_front(&mut self, found: Option<(&'static EdgeRoute, &str)>) -> CallAnswer<F::Stream> {
        let Some((route, rest)) = found else { return self.not_found() };
        let takes_get = !matches!(route.target, RouteTarget::Call(_) | RouteTarget::Question(_));
        let fits = match self.parts.method {
            Method::GET | Method::HEAD => takes_get,
            Method::POST => {
                !takes_get || matches!(route.target, RouteTarget::InternalApi | RouteTarget::Objects)
            }
            Method::DELETE => route.target == RouteTarget::Objects,
            _ => false,
        };
        if route.target == RouteTarget::Call(Endpoint::Responses) && is_websocket(self.parts) {
            return Box::pin(self.upgrade()).await;
        }
        if !fits {
            let endpoint = if let RouteTarget::Call(endpoint) = route.target { Some(endpoint) } else { None };
            if let Some(told) = self.shared.origins.preflight(self.parts, route.methods) {
                return told;
            }
            return self.refuse(&EdgeRefusal::MethodNotAllowed { allowed: route.methods }, endpoint);
        }
        let front = &self.shared.front;
        // A request with a valid key is served, even if other clients of the same address are refused.
        if route.access == RouteAccess::Key
            && self.activity.is_refused_too_often()
            && !front.knows(&self.credentials())
        {
            return self.cut_short();
        }
        self.ask(route.target, rest).await
    }

    /// Returns the call service's answer. A connection reserves memory for everything awaited here for as long as it is
    /// open, so everything except calls is boxed.
    async fn ask(&mut self, target: RouteTarget, rest: &str) -> CallAnswer<F::Stream> {
        let front = &self.shared.front;
        let reply = match target {
            RouteTarget::Call(endpoint) => self.call(endpoint).await,
            RouteTarget::Question(question) => Box::pin(self.question(question)).await,
            RouteTarget::Models => {
                let query = routes::query_fields(self.parts.uri.query()).unwrap_or_default();
                front.list_models(&self.credentials(), self.dialect(), &query)
            }
            RouteTarget::Model => match routes::percent_decoded(rest) {
                Some(name) => front.show_model(&self.credentials(), &name, self.dialect()),
                None => return self.not_found(),
            },
            RouteTarget::Request => match routes::percent_decoded(rest) {
                Some(id) => Box::pin(front.show_request(&self.credentials(), &id)).await,
                None => return self.not_found(),
            },
            RouteTarget::Objects => match self.objects_asked() {
                Some(ask) => Box::pin(self.objects(ask)).await,
                None => return self.not_found(),
            },
            RouteTarget::InternalApi => return self.not_found(),
            RouteTarget::Home => return self.shared.home.answer(&self.parts.headers, &self.peer),
            RouteTarget::Health => return health(),
            // Unknown clients ask here, too, so the reasons are given only on the operators' listener.
            RouteTarget::Ready => {
                let model = routes::model_asked(self.parts.uri.query());
                return ready(self.shared.not_ready(model.as_deref()).is_empty());
            }
        };
        // Any other status means that the request had a valid key.
        if reply.status == StatusCode::UNAUTHORIZED.as_u16() {
            self.activity.refused();
        } else {
            self.activity.trust();
        }
        reply
    }

    fn head(&self, endpoint: Endpoint) -> CallHead {
        let CallerHeaders { credentials, traceparent, dialect } = CallerHeaders::by(&self.parts.headers);
        CallHead {
            endpoint,
            credentials,
            peer: self.peer,
            traceparent,
            dialect,
            started: self.started.wall,
            started_mono_ns: self.started.mono_ns,
            connection: Some(self.connection),
        }
    }

    /// Lets an admitted caller continue with a responses socket on this connection. The handshake counts as a request
    /// of the caller's key, and so does each later call.
    async fn upgrade(&mut self) -> CallAnswer<F::Stream> {
        let EdgeShared { front, sockets, .. } = self.shared;
        let CallHead { credentials, traceparent, dialect, .. } = self.head(Endpoint::Responses);
        if self.activity.is_refused_too_often() && !front.knows(&credentials) {
            return self.cut_short();
        }
        let key = match front.admit_socket(self.head(Endpoint::Responses)) {
            Ok(key) => key,
            Err(refusal) => {
                if refusal.status == StatusCode::UNAUTHORIZED.as_u16() {
                    self.activity.refused();
                } else {
                    self.activity.trust();
                }
                return refusal;
            }
        };
        self.activity.trust();
        let place = match sockets.take(&key, self.activity) {
            Ok(place) => place,
            Err(none) => {
                let refusal = match none {
                    NoPlace::OfKey(limit) => EdgeRefusal::TooManySockets { limit, of_key: true },
                    NoPlace::All(limit) => EdgeRefusal::TooManySockets { limit, of_key: false },
                };
                return self.refuse(&refusal, Some(Endpoint::Responses));
            }
        };
        // A connection switches only once.
        let _ = self.turns.set(UpgradedCaller { credentials, traceparent, dialect, place });
        CallAnswer::json(StatusCode::SWITCHING_PROTOCOLS.as_u16(), Bytes::new())
    }

    async fn call(&mut self, endpoint: Endpoint) -> CallAnswer<F::Stream> {
        let EdgeShared { front, limits, memory, stats, .. } = self.shared;
        let head = self.head(endpoint);
        // The call is admitted before its body is requested.
        let admitted = match front.admit(head) {
            Ok(admitted) => admitted,
            Err(refusal) => return refusal,
        };
        self.activity.trust();
        let taken = memory.for_call_of(admitted.payer().clone());
        let (head, body, was_read) = (self.parts, &mut self.body, &mut self.body_was_read);
        front.call(admitted, RequestUpload { head, body, limits, stats, taken: &taken, was_read }).await
    }

    async fn question(&mut self, question: Question) -> CallAnswer<F::Stream> {
        let EdgeShared { front, limits, memory, stats, .. } = self.shared;
        let CallerHeaders { credentials, dialect, .. } = CallerHeaders::by(&self.parts.headers);
        let asked = match front.admit_question(question, &credentials, dialect) {
            Ok(asked) => asked,
            Err(refusal) => return refusal,
        };
        self.activity.trust();
        let taken = memory.for_call_of(asked.payer().clone());
        let (head, body, was_read) = (self.parts, &mut self.body, &mut self.body_was_read);
        front
            .answer_question(asked, RequestUpload { head, body, limits, stats, taken: &taken, was_read })
            .await
    }

    /// Returns a request for stored objects, or `None` if its path or query is broken.
    fn objects_asked(&self) -> Option<ObjectAsk> {
        let method = match self.parts.method {
            Method::POST => ObjectMethod::Post,
            Method::DELETE => ObjectMethod::Delete,
            _ => ObjectMethod::Get,
        };
        let path = self.parts.uri.path().strip_prefix("/v1/")?;
        let (path, query) = (routes::percent_decoded(path)?, routes::query_fields(self.parts.uri.query())?);
        Some(ObjectAsk { method, path, query, credentials: self.credentials() })
    }

    async fn objects(&mut self, ask: ObjectAsk) -> CallAnswer<F::Stream> {
        let EdgeShared { front, limits, memory, stats, .. } = self.shared;
        let asked = match front.admit_asked(ask) {
            Ok(asked) => asked,
            Err(refusal) => return refusal,
        };
        self.activity.trust();
        let taken = memory.for_call_of(asked.payer().clone());
        let (head, body, was_read) = (self.parts, &mut self.body, &mut self.body_was_read);
        front.answer_asked(asked, RequestUpload { head, body, limits, stats, taken: &taken, was_read }).await
    }

    /// Returns the internal API's answer.
    async fn ask_internal_api(
        &mut self,
        internal_api: &dyn InternalApi,
    ) -> CallAnswer<FrameSource<F::Stream>> {
        let EdgeShared { limits, memory, stats, .. } = self.shared;
        let authorization = joined(&self.parts.headers, &header::AUTHORIZATION);
        let head = InternalHead {
            method: self.parts.method.as_str(),
            path: self.parts.uri.path_and_query().map_or("", |path| path.as_str()),
            authorization: authorization.as_deref(),
            traceparent: single(&self.parts.headers, "traceparent"),
            now: self.started.wall,
        };
        let call = match internal_api.admit(&head) {
            Ok(call) => call,
            Err(_) if self.activity.is_refused_too_often() => {
                return self.cut_short().map(FrameSource::Service);
            }
            Err(refusal) => {
                self.activity.refused();
                return refusal.map(FrameSource::Internal);
            }
        };
        self.activity.trust();
        let taken = memory.for_call_of(call.payer().clone());
        let (head, body, was_read) = (self.parts, &mut self.body, &mut self.body_was_read);
        let upload = RequestUpload { head, body, limits, stats, taken: &taken, was_read };
        let answer = match upload.read_any().await {
            Ok(body) => call.answer(body).await,
            Err(refusal) => call.refuse(&refusal),
        };
        answer.map(FrameSource::Internal)
    }

    fn not_found(&mut self) -> CallAnswer<F::Stream> {
        let path = self.parts.uri.path();
        self.refuse(&EdgeRefusal::NotFound { path: path.to_owned(), meant: routes::meant(path) }, None)
    }

    fn refuse(&mut self, refusal: &EdgeRefusal, endpoint: Option<Endpoint>) -> CallAnswer<F::Stream> {
        if self.activity.is_refused_too_often() {
            return self.cut_short();
        }
        self.activity.refused();
        let dialect = endpoint.map_or_else(|| self.dialect(), Endpoint::dialect);
        let mut reply = self.shared.front.refuse(dialect, refusal, endpoint, self.started.wall);
        if let EdgeRefusal::MethodNotAllowed { allowed } = refusal
            && !reply.headers.iter().any(|(name, _)| *name == "allow")
        {
            reply.headers.push(("allow", (*allowed).to_owned()));
        }
        reply
    }

    /// Refuses a peer that has used up its allowance: no trace, no reasons, and the connection ends.
    fn cut_short(&mut self) -> CallAnswer<F::Stream> {
        self.cut_short = true;
        cut_short(&self.shared.stats)
    }

    /// Returns the dialect of a request whose path does not decide it.
    fn dialect(&self) -> Dialect {
        let is_anthropic = self.parts.headers.contains_key("anthropic-version")
            || self.parts.uri.path().starts_with("/v1/messages");
        if is_anthropic { Dialect::Anthropic } else { Dialect::OpenAi }
    }

    fn credentials(&self) -> Credentials {
        CallerHeaders::by(&self.parts.headers).credentials
    }
}

/// Returns the number of hosts that an HTTP/1 request names, if it is wrong (RFC 9112 §3.2).
fn wrong_hosts(head: &Parts) -> Option<usize> {
    let hosts = head.headers.get_all(header::HOST).iter().count();
    let is_right = match head.version {
        Version::HTTP_11 => hosts == 1,
        _ => hosts <= 1,
    };
    (!is_right).then_some(hosts)
}
