//! The operators' listener: `/metrics`, `/healthz`, `/readyz`. It still answers when the public listener is full.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{AnswerBody, CallAnswer, CallService};
use http::header::ACCEPT;
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::activity::ConnectionActivity;
use crate::answers::{health, ready, response, written_out};
use crate::body::OutBody;
use crate::connection::{ConnectionSetup, NoSwitch, UnreadRequest};
use crate::listener::accept;
use crate::registry::ConnectionRegistry;
use crate::routes;
use crate::service::EdgeShared;
use crate::stats::EdgeNumber;

/// Maximum number of connections. Operators are few.
pub(crate) const MOST_CONNECTIONS: usize = 32;
/// Number of connections that are closed when no file descriptors are left.
const CLOSED_AT_ONCE: usize = 4;

/// Renders the metrics of the whole server. The arguments are the request's `Accept` header and the edge's own metrics.
/// Returns a content type and the page.
pub type MetricsPage = dyn Fn(Option<&str>, &[EdgeNumber]) -> (&'static str, String) + Send + Sync;

pub(crate) type Metrics = Arc<MetricsPage>;

/// An empty page, for an edge without an operators' listener.
pub fn no_metrics() -> Arc<MetricsPage> {
    Arc::new(|_: Option<&str>, _: &[EdgeNumber]| ("text/plain", String::new()))
}

/// Serves until the future is dropped.
pub(crate) async fn serve<F: CallService>(
    listener: &TcpListener,
    wiring: Arc<ConnectionSetup>,
    shared: Arc<EdgeShared<F>>,
    metrics: Metrics,
    registry: Arc<ConnectionRegistry>,
    tracker: TaskTracker,
) {
    loop {
        let short = || registry.close_idle(CLOSED_AT_ONCE);
        let (stream, address) = accept(listener, &shared.stats, short).await;
        let Ok(registered) = registry.register(address.ip().into()) else { continue };
        let (wiring, shared, metrics) = (Arc::clone(&wiring), Arc::clone(&shared), Arc::clone(&metrics));
        tracker.spawn(async move {
            let activity = Arc::clone(&registered.activity);
            let service = service_fn(|request| {
                std::future::ready(Ok::<_, Infallible>(answer(&shared, &metrics, &activity, &request)))
            });
            let refusal_bytes = |fault| {
                let status = match fault {
                    UnreadRequest::Slow => 408,
                    UnreadRequest::TooLarge => 431,
                    UnreadRequest::Malformed(_) => 400,
                };
                written_out(&text::<F::Stream>(status, "This is no request in HTTP/1.1.\n".to_owned()))
            };
            wiring.serve(stream, &registered.activity, service, (refusal_bytes, &NoSwitch)).await;
        });
    }
}

fn answer<F: CallService>(
    shared: &EdgeShared<F>,
    metrics: &Metrics,
    activity: &Arc<ConnectionActivity>,
    request: &Request<Incoming>,
) -> Response<OutBody<F::Stream>> {
    let (_, in_flight) = activity.request();
    let is_head = request.method() == Method::HEAD;
    let reply = if !is_head && request.method() != Method::GET {
        text(405, "Only GET is taken here.\n".to_owned()).with_header("allow", "GET, HEAD")
    } else {
        match request.uri().path() {
            "/metrics" => {
                let accept = request.headers().get(ACCEPT).and_then(|accept| accept.to_str().ok());
                let (content_type, page) = metrics(accept, &shared.stats.numbers());
                CallAnswer { content_type, ..text(200, page) }
            }
            "/healthz" => health(),
            "/readyz" => match &not_ready(shared, request)[..] {
                [] => ready(true),
                why => {
                    let why = format!("not ready\n{}\n", why.join("\n"));
                    text(503, why).with_header("retry-after", "1")
                }
            },
            _ => text(404, "There are /metrics, /healthz and /readyz here.\n".to_owned()),
        }
    };
    response(reply, in_flight, is_head)
}

/// Returns why calls, or those for the model in the query (`?model=NAME`), would not be served.
fn not_ready<F: CallService>(shared: &EdgeShared<F>, request: &Request<Incoming>) -> Vec<String> {
    let model = routes::model_asked(request.uri().query());
    shared.not_ready(model.as_deref())
}

fn text<S>(status: u16, body: String) -> CallAnswer<S> {
    CallAnswer {
        status,
        content_type: "text/plain; charset=utf-8",
        headers: Vec::new(),
        body: AnswerBody::Whole(Bytes::from(body)),
    }
}
