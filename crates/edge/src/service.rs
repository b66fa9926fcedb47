//! From one request to one response: the route, the edge's own refusals, the call service's answer. Knows HTTP's terms.
//! The call service decides who may do what.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use bytes::Bytes;
use headrace_call_api::{
    CallAnswer, CallService, CallerInfo, IdempotencyHeader, InternalApi, InternalHead, MemoryAccount,
    PeerAddress, RequestAdmission, RequestHead, RequestTarget,
};
use headrace_domain::{Clock, ConnectionTrace, Dialect, Endpoint};
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
use crate::handshake::{AdmittedSocket, PendingSocket, SocketCaller, is_websocket, switched};
use crate::home::HomePage;
use crate::peer::{RefusalAllowance, RefusalAllowances};
use crate::published::PublishedKeys;
use crate::refusal::{EdgeRefusal, HeadTime, RefusalWriter};
use crate::routes::{self, EdgeRoute, RouteAccess, RouteTarget};
use crate::sockets::{NoPlace, WebSocketTable};
use crate::stats::{EdgeStats, count};
use crate::trusted_proxies::TrustedProxies;
use crate::upload::{BodyLimits, RequestUpload, head_bytes};

/// Reason for a server that still accepts calls to be not ready.
pub const STOPS_SOON: &str = "the server stops soon: new calls are taken for `server.drain_delay` only";

/// State that all connections share.
pub(crate) struct EdgeShared<F> {
    pub(crate) service: Arc<F>,
    /// The internal API, if there is one.
    pub(crate) internal_api: Option<Arc<dyn InternalApi>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) refusals: RefusalWriter,
    pub(crate) limits: BodyLimits,
    pub(crate) max_header_bytes: usize,
    pub(crate) memory: MemoryAccount,
    pub(crate) stats: Arc<EdgeStats>,
    /// Places for responses sockets, by key.
    pub(crate) sockets: Arc<WebSocketTable>,
    /// The origins whose pages may call.
    pub(crate) origins: AllowedOrigins,
    /// The proxies whose header names the client of a request.
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) proxy_protocol: bool,
    /// The allowances of clients behind trusted proxies. A proxy's connection carries requests of many clients.
    pub(crate) forwarded_allowances: RefusalAllowances,
    /// The server stops soon. It still accepts calls, but is not ready for new clients.
    pub(crate) stops: Arc<AtomicBool>,
    /// The page at `/`.
    pub(crate) home: HomePage,
    /// The keys that sign receipts.
    pub(crate) receipt_keys: PublishedKeys,
}

impl<F: CallService> EdgeShared<F> {
    /// Returns why calls, or calls for `model`, would not be served. Empty if they would be served.
    pub(crate) fn not_ready(&self, model: Option<&str>) -> Vec<String> {
        let mut why = self.service.not_ready(model);
        if self.stops.load(Ordering::Acquire) {
            why.push(STOPS_SOON.to_owned());
        }
        why
    }

    /// Returns whether the caller's key is valid. Nothing is counted.
    pub(crate) fn has_valid_key(&self, caller: CallerInfo) -> bool {
        self.service.admit(RequestHead { target: RequestTarget::KeyCheck, caller }).is_ok()
    }
}

/// Answers one request. `number` counts the requests of its connection.
pub(crate) async fn answer<F: CallService>(
    shared: Arc<EdgeShared<F>>,
    (peer, socket): (PeerAddress, Arc<PendingSocket<F::Admission>>),
    (number, in_flight): (u64, InFlight),
    request: Request<Incoming>,
) -> Result<Response<OutBody<FrameSource<F::Stream>>>, Infallible> {
    let started = HeadTime::now(&*shared.clock);
    count(&shared.stats.requests);
    let (parts, body) = request.into_parts();
    let (is_http1, is_head) = (parts.version < Version::HTTP_2, parts.method == Method::HEAD);
    let activity = in_flight.activity();
    let client = shared.trusted_proxies.client(peer.address, &parts.headers);
    // Behind a proxy, refusals count for the client, not for the connection's sender.
    let proxied = client.or(shared.proxy_protocol.then_some(peer.address));
    let forwarded = proxied.map(|client| shared.forwarded_allowances.of(client.ip().into()));
    let peer = client.map_or(peer, |address| PeerAddress { address });
    let mut request = RequestInProgress {
        shared: &shared,
        peer,
        forwarded,
        activity,
        parts: &parts,
        started,
        connection: ConnectionTrace { requests_before: number, open_ns: activity.age_ns() },
        body_was_read: body.is_end_stream(),
        body,
        cut_short: false,
        socket: &socket,
    };
    let reply = if is_http1 && activity.is_ambiguous(number) {
        request.body_was_read = false;
        request.refuse(&EdgeRefusal::AmbiguousLength, None).map(FrameSource::Service)
    } else if let Some(hosts) = wrong_hosts(&parts) {
        request.body_was_read = false;
        request.refuse(&EdgeRefusal::BadHost { hosts }, None).map(FrameSource::Service)
    } else if !is_http1 && head_bytes(&parts) > shared.max_header_bytes {
        let limit_bytes = shared.max_header_bytes;
        let refusal = EdgeRefusal::HeadTooLarge { limit_bytes, most_headers: MOST_HTTP1_HEADERS };
        request.refuse(&refusal, None).map(FrameSource::Service)
    } else {
        request.reply().await
    };
    let (body_left, cut_short) = (!request.body_was_read, request.cut_short);
    drop(request);
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

/// A request that is being answered.
struct RequestInProgress<'a, F: CallService> {
    shared: &'a EdgeShared<F>,
    /// The client: the connection's peer, or the client that a trusted proxy names.
    peer: PeerAddress,
    /// The client's allowance of refusals, if a trusted proxy sent the request.
    forwarded: Option<Arc<RefusalAllowance>>,
    activity: &'a Arc<ConnectionActivity>,
    parts: &'a Parts,
    started: HeadTime,
    connection: ConnectionTrace,
    body: Incoming,
    body_was_read: bool,
    /// The peer has used up its allowance of refusals, so it got the short answer.
    cut_short: bool,
    /// Set if the connection continues as a responses socket.
    socket: &'a PendingSocket<F::Admission>,
}

impl<F: CallService> RequestInProgress<'_, F> {
    async fn reply(&mut self) -> CallAnswer<FrameSource<F::Stream>> {
        let found = routes::find(self.parts.uri.path());
        if let (Some((EdgeRoute { target: RouteTarget::InternalApi, .. }, _)), Some(internal_api)) =
            (found, &self.shared.internal_api)
        {
            return Box::pin(self.ask_internal_api(&**internal_api)).await;
        }
        self.answer_route(found).await.map(FrameSource::Service)
    }

    async fn answer_route(&mut self, found: Option<(&'static EdgeRoute, &str)>) -> CallAnswer<F::Stream> {
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
        if route.access == RouteAccess::Key {
            self.wait_before_admission().await;
        }
        if route.target == RouteTarget::Call(Endpoint::Responses) && is_websocket(self.parts) {
            return self.upgrade();
        }
        if !fits {
            let endpoint = if let RouteTarget::Call(endpoint) = route.target { Some(endpoint) } else { None };
            if let Some(preflight) = self.shared.origins.preflight(self.parts, route.methods) {
                return preflight;
            }
            return self.refuse(&EdgeRefusal::MethodNotAllowed { allowed: route.methods }, endpoint);
        }
        // A request with a valid key is served, even if other clients of the same address are refused.
        if route.access == RouteAccess::Key
            && self.is_refused_too_often()
            && !self.shared.has_valid_key(self.caller())
        {
            return self.cut_short();
        }
        match route.target {
            RouteTarget::Home => self.shared.home.answer(&self.parts.headers, &self.peer),
            RouteTarget::Health => health(),
            RouteTarget::ReceiptKeys => self.shared.receipt_keys.answer(),
            // Unknown clients ask here, too, so the reasons are given only on the operators' listener.
            RouteTarget::Ready => {
                let model = routes::model_asked(self.parts.uri.query());
                ready(self.shared.not_ready(model.as_deref()).is_empty())
            }
            target => match target.of_service(self.parts, rest, || self.dialect()) {
                Some(target) => self.serve(target).await,
                None => self.not_found(),
            },
        }
    }

    /// Waits if the call service needs I/O to identify the caller or to know its limits.
    async fn wait_before_admission(&self) {
        let headers = &self.parts.headers;
        let authorization = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        let x_api_key = headers.get("x-api-key").map(HeaderValue::as_bytes);
        let service = &self.shared.service;
        if let Some(wait) = service.wait_before_admission(authorization, x_api_key) {
            wait.await;
        }
        if let Some(wait) = service.wait_for_limits(|| self.caller()) {
            wait.await;
        }
    }

    /// Returns the call service's answer. A request is admitted before its body is requested.
    async fn serve(&mut self, target: RequestTarget) -> CallAnswer<F::Stream> {
        let EdgeShared { service, limits, memory, stats, .. } = self.shared;
        let reply = match service.admit(RequestHead { target, caller: self.caller() }) {
            Ok(admission) => {
                self.activity.trust();
                let taken = memory.for_call_of(admission.payer().clone());
                let (head, body, was_read) = (self.parts, &mut self.body, &mut self.body_was_read);
                let upload = RequestUpload { head, body, limits, stats, taken: &taken, was_read };
                service.serve(admission, upload).await
            }
            Err(refusal) => refusal,
        };
        self.count_status(reply.status);
        reply
    }

    /// Counts an answer of the call service. Any status but 401 means that the request had a valid key, except 503:
    /// the key may not have been checked.
    fn count_status(&self, status: u16) {
        if status == StatusCode::UNAUTHORIZED.as_u16() {
            self.refused();
        } else if status != StatusCode::SERVICE_UNAVAILABLE.as_u16() {
            self.activity.trust();
        }
    }

    fn caller(&self) -> CallerInfo {
        let CallerHeaders { mut credentials, traceparent, dialect_headers, idempotency_key } =
            CallerHeaders::by(&self.parts.headers);
        credentials.certificate = self.activity.certificate().cloned();
        CallerInfo {
            credentials,
            peer: self.peer,
            traceparent,
            dialect_headers,
            idempotency: idempotency_key.and_then(|key| self.idempotency(key)),
            started: self.started.wall,
            started_mono_ns: self.started.mono_ns,
            connection: Some(self.connection),
        }
    }

    /// Returns the idempotency key with what the request asks for. `None` if it is no `POST`, which may be repeated anyway.
    fn idempotency(&self, (value, is_repeated): (Vec<u8>, bool)) -> Option<Box<IdempotencyHeader>> {
        let Parts { method, uri, .. } = self.parts;
        let target = uri.path_and_query().map_or("", |target| target.as_str());
        let target = format!("{method} {target}");
        (method == Method::POST).then(|| Box::new(IdempotencyHeader { value, is_repeated, target }))
    }

    /// Lets an admitted caller continue with a responses socket on this connection. The handshake counts as a request
    /// of the caller's key, and so does each later call.
    fn upgrade(&mut self) -> CallAnswer<F::Stream> {
        let EdgeShared { service, sockets, .. } = self.shared;
        let info = self.caller();
        if self.is_refused_too_often() && !self.shared.has_valid_key(info.clone()) {
            return self.cut_short();
        }
        let head = RequestHead { target: RequestTarget::SocketHandshake, caller: info.clone() };
        let admission = match service.admit(head) {
            Ok(admission) => admission,
            Err(refusal) => {
                self.count_status(refusal.status);
                return refusal;
            }
        };
        self.activity.trust();
        let place = match sockets.take(admission.payer(), self.activity) {
            Ok(place) => place,
            Err(none) => {
                let refusal = match none {
                    NoPlace::OfKey(limit) => EdgeRefusal::TooManySockets { limit, of_key: true },
                    NoPlace::All(limit) => EdgeRefusal::TooManySockets { limit, of_key: false },
                };
                return self.refuse(&refusal, Some(Endpoint::Responses));
            }
        };
        let caller = SocketCaller { info, session: admission.session(), place };
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(AdmittedSocket { caller, admission });
        CallAnswer::json(StatusCode::SWITCHING_PROTOCOLS.as_u16(), Bytes::new())
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
            Err(_) if self.is_refused_too_often() => {
                return self.cut_short().map(FrameSource::Service);
            }
            Err(refusal) => {
                self.refused();
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
        if self.is_refused_too_often() {
            return self.cut_short();
        }
        self.refused();
        let dialect = endpoint.map_or_else(|| self.dialect(), Endpoint::dialect);
        self.shared.refusals.answer(refusal, dialect, endpoint, self.started)
    }

    /// Returns whether the client has used up its allowance of refusals.
    fn is_refused_too_often(&self) -> bool {
        match &self.forwarded {
            Some(allowance) => allowance.is_used_up(),
            None => self.activity.is_refused_too_often(),
        }
    }

    /// Counts a refusal of the client.
    fn refused(&self) {
        match &self.forwarded {
            Some(allowance) => allowance.refused(),
            None => self.activity.refused(),
        }
    }

    /// Refuses a client that has used up its allowance: no trace and no reasons. The connection ends, unless a trusted
    /// proxy has it, for other clients too.
    fn cut_short(&mut self) -> CallAnswer<F::Stream> {
        self.cut_short = self.forwarded.is_none();
        cut_short(&self.shared.stats)
    }

    /// Returns the dialect of a request whose path does not decide it.
    fn dialect(&self) -> Dialect {
        let is_anthropic = self.parts.headers.contains_key("anthropic-version")
            || self.parts.uri.path().starts_with("/v1/messages");
        if is_anthropic { Dialect::Anthropic } else { Dialect::OpenAi }
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
