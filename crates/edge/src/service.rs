//! One request to one response: the route, the edge's own refusals, the front's answer. Knows HTTP's words;
//! every decision about who may do what is the front's.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::{Clock, Dialect, Endpoint, UnixNanos};
use headrace_gateway::{Arrival, Credentials, EdgeRefusal};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};

use crate::activity::{Activity, InFlight, Wish};
use crate::body::{OutBody, Pieces};
use crate::front::{Frames, Front, Reply, ReplyBody};
use crate::memory::{Memory, Share};
use crate::routes::{self, Access, Target};
use crate::stats::{Stats, count};
use crate::upload::{BodyLimits, Upload};

/// What a peer is told that has been refused too often, in a shape that both dialects' clients read.
const CUT_SHORT: &[u8] = br#"{"type":"error","error":{"type":"rate_limit_error","code":"too_many_refusals","message":"Requests from this address were refused so often that they are not looked at any more. Wait a minute, and see what the first refusals said."}}"#;

/// What all connections share.
pub(crate) struct Shared<F> {
    pub(crate) front: Arc<F>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: BodyLimits,
    pub(crate) memory: Memory,
    pub(crate) stats: Arc<Stats>,
}

/// Answers one request, the connection's `number`th.
pub(crate) async fn answer<F: Front>(
    shared: Arc<Shared<F>>,
    (number, in_flight): (u64, InFlight),
    request: Request<Incoming>,
) -> Result<Response<OutBody<F::Stream>>, Infallible> {
    let started = Moment { wall: shared.clock.now(), mono_ns: shared.clock.monotonic_nanos() };
    count(&shared.stats.requests);
    let (parts, body) = request.into_parts();
    let (is_http1, is_head) = (parts.version < Version::HTTP_2, parts.method == Method::HEAD);
    let activity = in_flight.activity();
    let mut asked = Asked {
        shared: &shared,
        activity,
        parts: &parts,
        started,
        body_was_read: body.is_end_stream(),
        body,
        share: None,
        cut_short: false,
    };
    let reply = if is_http1 && activity.is_ambiguous(number) {
        asked.body_was_read = false;
        asked.refuse(&EdgeRefusal::AmbiguousLength, None)
    } else if let Some(hosts) = wrong_hosts(&parts) {
        asked.body_was_read = false;
        asked.refuse(&EdgeRefusal::BadHost { hosts }, None)
    } else {
        asked.reply().await
    };
    let (body_left, cut_short) = (!asked.body_was_read, asked.cut_short);
    drop(asked);
    if cut_short {
        activity.wish(Wish::Finish);
    }
    // What follows a wish for another protocol may not be HTTP.
    let close = is_http1
        && (body_left
            || cut_short
            || activity.has_been_refused_enough()
            || parts.headers.contains_key(header::UPGRADE));
    if close {
        // What is left of the body would be taken for the next request's head.
        activity.leave_body_unread();
    }
    let mut response = response(reply, in_flight, is_head);
    if close {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// When a request's headers were whole.
#[derive(Clone, Copy)]
struct Moment {
    wall: UnixNanos,
    mono_ns: u64,
}

/// A request that is being answered.
struct Asked<'a, F> {
    shared: &'a Shared<F>,
    activity: &'a Activity,
    parts: &'a Parts,
    started: Moment,
    body: Incoming,
    body_was_read: bool,
    /// What it takes of the memory for requests, until it is answered.
    share: Option<Share<'a>>,
    /// Its peer had been refused so often that it was told nothing more.
    cut_short: bool,
}

impl<F: Front> Asked<'_, F> {
    async fn reply(&mut self) -> Reply<F::Stream> {
        let path = self.parts.uri.path();
        let Some((route, rest)) = routes::find(path) else { return self.not_found() };
        let takes_get = !matches!(route.target, Target::Call(_));
        let fits = match self.parts.method {
            Method::GET | Method::HEAD => takes_get,
            Method::POST => !takes_get,
            _ => false,
        };
        if !fits {
            let endpoint = if let Target::Call(endpoint) = route.target { Some(endpoint) } else { None };
            return self.refuse(&EdgeRefusal::MethodNotAllowed { allowed: route.methods }, endpoint);
        }
        let front = &self.shared.front;
        // Whoever shows a good key is served, whatever others of the same address did.
        if route.access == Access::Key
            && self.activity.is_refused_too_often()
            && !front.knows(&self.credentials())
        {
            return self.cut_short();
        }
        self.ask(route.target, rest).await
    }

    /// What the front says.
    async fn ask(&mut self, target: Target, rest: &str) -> Reply<F::Stream> {
        let front = &self.shared.front;
        let reply = match target {
            Target::Call(endpoint) => self.call(endpoint).await,
            Target::Models => front.list_models(&self.credentials(), self.dialect()),
            Target::Model => match routes::percent_decoded(rest) {
                Some(name) => front.show_model(&self.credentials(), &name, self.dialect()),
                None => return self.not_found(),
            },
            Target::Request => match routes::percent_decoded(rest) {
                Some(id) => front.show_request(&self.credentials(), &id).await,
                None => return self.not_found(),
            },
            Target::Health => return health(),
            // Strangers ask here, too: why not is told on the operators' listener.
            Target::Ready => return ready(front.not_ready().is_empty()),
        };
        // Everybody else has shown a good key, whatever the front made of it.
        if reply.status == StatusCode::UNAUTHORIZED.as_u16() {
            self.activity.refused();
        } else {
            self.activity.trust();
        }
        reply
    }

    async fn call(&mut self, endpoint: Endpoint) -> Reply<F::Stream> {
        let arrival = Arrival {
            endpoint,
            credentials: self.credentials(),
            traceparent: single(&self.parts.headers, "traceparent"),
            started: self.started.wall,
            started_mono_ns: self.started.mono_ns,
            body: Upload {
                head: self.parts,
                body: &mut self.body,
                limits: &self.shared.limits,
                memory: &self.shared.memory,
                stats: &self.shared.stats,
                activity: self.activity,
                share: &mut self.share,
                was_read: &mut self.body_was_read,
            },
        };
        self.shared.front.call(arrival).await
    }

    fn not_found(&mut self) -> Reply<F::Stream> {
        let path = self.parts.uri.path();
        self.refuse(&EdgeRefusal::NotFound { path: path.to_owned(), meant: routes::meant(path) }, None)
    }

    fn refuse(&mut self, refusal: &EdgeRefusal, endpoint: Option<Endpoint>) -> Reply<F::Stream> {
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

    /// A refusal to a peer that has been refused too often: no trace, no reasons, and the connection ends.
    fn cut_short(&mut self) -> Reply<F::Stream> {
        count(&self.shared.stats.refusals_cut_short);
        self.cut_short = true;
        let mut reply = small(429, Bytes::from_static(CUT_SHORT));
        reply.headers.push(("retry-after", "60".to_owned()));
        reply
    }

    /// The dialect where the path does not decide it.
    fn dialect(&self) -> Dialect {
        let is_anthropic = self.parts.headers.contains_key("anthropic-version")
            || self.parts.uri.path().starts_with("/v1/messages");
        if is_anthropic { Dialect::Anthropic } else { Dialect::OpenAi }
    }

    fn credentials(&self) -> Credentials {
        Credentials {
            authorization: joined(&self.parts.headers, &header::AUTHORIZATION),
            x_api_key: joined(&self.parts.headers, &HeaderName::from_static("x-api-key")),
        }
    }
}

/// How many hosts an HTTP/1 request names, if that is wrong (RFC 9112 §3.2).
fn wrong_hosts(head: &Parts) -> Option<usize> {
    let hosts = head.headers.get_all(header::HOST).iter().count();
    let is_right = match head.version {
        Version::HTTP_11 => hosts == 1,
        _ => hosts <= 1,
    };
    (!is_right).then_some(hosts)
}

/// All values of a header, joined as HTTP says they may be: two credentials in one header are no credential, and the
/// front is to see that there were two.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let mut values = headers.get_all(name).iter();
    let mut out = values.next()?.as_bytes().to_vec();
    for value in values {
        out.extend_from_slice(b", ");
        out.extend_from_slice(value.as_bytes());
    }
    Some(out)
}

/// The value of a header that stands there once and is text.
fn single(headers: &HeaderMap, name: &'static str) -> Option<String> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then(|| first.to_owned())
}

/// Whole seconds of a limit, rounded up.
pub(crate) fn whole_seconds(limit: Duration) -> u64 {
    limit.as_secs().saturating_add(u64::from(limit.subsec_nanos() > 0))
}

/// Alive.
pub(crate) fn health<S>() -> Reply<S> {
    small(200, Bytes::from_static(br#"{"status":"alive"}"#))
}

/// Ready or not.
pub(crate) fn ready<S>(is_ready: bool) -> Reply<S> {
    if is_ready {
        return small(200, Bytes::from_static(br#"{"status":"ready"}"#));
    }
    let mut reply = small(503, Bytes::from_static(br#"{"status":"not_ready"}"#));
    reply.headers.push(("retry-after", "1".to_owned()));
    reply
}

fn small<S>(status: u16, body: Bytes) -> Reply<S> {
    Reply { status, content_type: "application/json", headers: Vec::new(), body: ReplyBody::Whole(body) }
}

/// A reply as HTTP has it. To `HEAD` goes all but the body.
pub(crate) fn response<S: Frames>(
    reply: Reply<S>,
    in_flight: InFlight,
    is_head: bool,
) -> Response<OutBody<S>> {
    let streams = matches!(reply.body, ReplyBody::Stream(_));
    let mut length = None;
    let body = match reply.body {
        ReplyBody::Whole(bytes) if is_head => {
            length = Some(HeaderValue::from(bytes.len()));
            OutBody::Whole(Bytes::new())
        }
        ReplyBody::Stream(_) | ReplyBody::Long { .. } if is_head => OutBody::Whole(Bytes::new()),
        ReplyBody::Whole(bytes) => OutBody::Whole(bytes),
        ReplyBody::Stream(frames) => OutBody::Pieces(Pieces::new(frames, None, in_flight)),
        ReplyBody::Long { body, bytes } => OutBody::Pieces(Pieces::new(body, Some(bytes), in_flight)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.reserve(reply.headers.len().saturating_add(3));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
    if streams {
        // Proxies on the way must neither keep nor gather the pieces.
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    }
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, length);
    }
    for (name, value) in reply.headers {
        match (HeaderName::from_bytes(name.as_bytes()), HeaderValue::try_from(value)) {
            (Ok(name), Ok(value)) => {
                headers.insert(name, value);
            }
            _ => tracing::error!(name, "a header of an answer is not one and was left out"),
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_twice_is_neither() {
        let mut headers = HeaderMap::new();
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer a"));
        headers.append("traceparent", HeaderValue::from_static("x"));
        assert_eq!(joined(&headers, &header::AUTHORIZATION).as_deref(), Some(&b"Bearer a"[..]));
        assert_eq!(single(&headers, "traceparent").as_deref(), Some("x"));
        headers.append(header::AUTHORIZATION, HeaderValue::from_static("Bearer b"));
        headers.append("traceparent", HeaderValue::from_static("x"));
        assert_eq!(joined(&headers, &header::AUTHORIZATION).as_deref(), Some(&b"Bearer a, Bearer b"[..]));
        assert_eq!(single(&headers, "traceparent"), None);
    }
}
