//! A controllable call service, and an edge in front of it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{
    AbortReason, AdmissionWait, AnswerBody, AnswerFrames, BodyRefusal, BodySource, BrokenBody, CallAnswer,
    CallService, ClientCertificate, Credentials, InternalApi, ObjectMethod, ObjectOperation,
    RequestAdmission, RequestHead, RequestTarget, SessionId, TransportOutlet,
};
use headrace_domain::{KeyId, SystemClock, TraceRecord, TraceSink};
use headrace_edge::{Edge, EdgeConfig, EdgeNumber, ServeReport, TlsCertificate};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// Bodies with a special meaning for the stub. It returns any other body unchanged.
pub(crate) const HANG: &str = "\"hang\"";
pub(crate) const ENDLESS: &str = "\"endless\"";
pub(crate) const SILENT: &str = "\"silent\"";
pub(crate) const THREE: &str = "\"three\"";
pub(crate) const BIG: &str = "\"big\"";
pub(crate) const PANIC: &str = "\"panic\"";
/// An event of moderate length.
const EVENT: &[u8] = b"data: {\"delta\": \"and so on, and so on, and so on, and so on, and so on, and so on, and so on, and so on\"}\n\n";

/// A call service whose behaviour the request's body selects.
pub(crate) struct Stub {
    /// Number of admitted calls.
    pub(crate) calls: AtomicUsize,
    /// Number of calls, including refused ones.
    pub(crate) attempts: AtomicUsize,
    /// Number of WebSocket handshakes, including refused ones.
    pub(crate) handshakes: AtomicUsize,
    /// Whether all keys were revoked.
    pub(crate) revoked: AtomicBool,
    /// Whether the credential `late`, which needs I/O, can be checked by now.
    pub(crate) late_is_known: watch::Sender<bool>,
    pub(crate) in_flight: Arc<AtomicUsize>,
    cut: watch::Sender<bool>,
    /// Why the last body was dropped, if the client did not go away.
    pub(crate) abort_reason: Arc<Mutex<Option<AbortReason>>>,
    /// The peer of the last call.
    pub(crate) peer: Mutex<Option<SocketAddr>>,
    /// The client certificate of the last call.
    pub(crate) certificate: Mutex<Option<ClientCertificate>>,
    /// Number of open sessions of WebSockets.
    pub(crate) sessions: Arc<AtomicUsize>,
    /// Traces of the requests that the edge refused.
    pub(crate) refusals: Mutex<Vec<TraceRecord>>,
    /// The outlet of the last body.
    pub(crate) outlet: Arc<Mutex<Option<Arc<dyn TransportOutlet>>>>,
}

/// An admitted request.
pub(crate) struct Admission {
    key: KeyId,
    target: RequestTarget,
    /// Counts the request as in flight, or its session as open.
    guard: Option<Guard>,
}

impl RequestAdmission for Admission {
    fn payer(&self) -> &KeyId {
        &self.key
    }

    fn session(&self) -> Option<SessionId> {
        (self.target == RequestTarget::SocketHandshake).then_some(SESSION)
    }
}

/// A credential that cannot be checked without I/O.
const LATE: &[u8] = b"Bearer late";

/// The session of every WebSocket.
const SESSION: SessionId = SessionId::new(7);

struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) struct Pieces {
    piece: Bytes,
    left: usize,
    silent: bool,
    cut: watch::Receiver<bool>,
    abort_reason: Arc<Mutex<Option<AbortReason>>>,
    outlet: Arc<Mutex<Option<Arc<dyn TransportOutlet>>>>,
    _guard: Guard,
}

impl AnswerFrames for Pieces {
    fn set_outlet(&mut self, outlet: Arc<dyn TransportOutlet>) {
        *self.outlet.lock().unwrap() = Some(outlet);
    }

    fn abort(&mut self, why: AbortReason) {
        *self.abort_reason.lock().unwrap() = Some(why);
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BrokenBody>>> {
        if *self.cut.borrow() || self.left == 0 && !self.silent {
            return Poll::Ready(None);
        }
        if self.left == 0 {
            // Wakes itself periodically, in place of the external events that wake a real delivery.
            let waker = cx.waker().clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                waker.wake();
            });
            return Poll::Pending;
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(self.piece.clone())))
    }
}

impl Stub {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            calls: AtomicUsize::new(0),
            attempts: AtomicUsize::new(0),
            handshakes: AtomicUsize::new(0),
            revoked: AtomicBool::new(false),
            late_is_known: watch::Sender::new(false),
            in_flight: Arc::default(),
            cut: watch::Sender::new(false),
            abort_reason: Arc::default(),
            peer: Mutex::default(),
            certificate: Mutex::default(),
            sessions: Arc::default(),
            refusals: Mutex::default(),
            outlet: Arc::default(),
        })
    }

    pub(crate) fn three(self: &Arc<Self>) -> Pieces {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let answer = self.pieces(Guard(Arc::clone(&self.in_flight)), b"data: 1\n\n", 3, false);
        let AnswerBody::Stream(pieces) = answer.body else { panic!("it streams") };
        pieces
    }

    fn pieces(&self, guard: Guard, piece: &'static [u8], left: usize, silent: bool) -> CallAnswer<Pieces> {
        let pieces = Pieces {
            piece: Bytes::from_static(piece),
            left,
            silent,
            cut: self.cut.subscribe(),
            abort_reason: Arc::clone(&self.abort_reason),
            outlet: Arc::clone(&self.outlet),
            _guard: guard,
        };
        reply(200, "text/event-stream", AnswerBody::Stream(pieces))
    }

    /// Returns the key, if the stub knows it and keys are not revoked.
    fn known(&self, credentials: &Credentials) -> Option<KeyId> {
        known(credentials).filter(|_| !self.revoked.load(Ordering::SeqCst))
    }

    /// Waits until this many calls are in flight.
    pub(crate) async fn until_in_flight(&self, calls: usize) {
        until(|| self.in_flight.load(Ordering::SeqCst) == calls).await;
    }
}

/// Waits until `so` returns `true`. Fails after [`PATIENCE`].
pub(crate) async fn until(so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it never came to be");
}

fn reply(status: u16, content_type: &'static str, body: AnswerBody<Pieces>) -> CallAnswer<Pieces> {
    CallAnswer { status, content_type, headers: vec![("x-request-id", "req_stub".to_owned())], body }
}

fn whole(status: u16, body: impl Into<Bytes>) -> CallAnswer<Pieces> {
    reply(status, "application/json", AnswerBody::Whole(body.into()))
}

/// Returns the key, if the stub knows it.
fn known(credentials: &Credentials) -> Option<KeyId> {
    let name = match (&credentials.authorization, &credentials.x_api_key) {
        (Some(key), None) if key == b"Bearer good" => "good",
        (Some(key), None) if key == b"Bearer other" => "other",
        (None, Some(key)) if key == b"good" => "good",
        _ => return None,
    };
    Some(KeyId::new(name).unwrap())
}

fn not_taken(refusal: &BodyRefusal) -> CallAnswer<Pieces> {
    let status = match refusal {
        BodyRefusal::TooLarge { .. } => 413,
        BodyRefusal::TooSlow { .. } => 408,
        BodyRefusal::Encoding { .. } | BodyRefusal::MediaType => 415,
        BodyRefusal::Incomplete | BodyRefusal::TooManyPieces { .. } => 400,
        BodyRefusal::MemoryOfKey { .. } => 429,
        BodyRefusal::Memory { .. } => 503,
    };
    whole(status, format!("{{\"refused\":\"{refusal:?}\"}}"))
}

impl Stub {
    /// Answers a call with this body.
    async fn call(&self, guard: Guard, body: Bytes) -> CallAnswer<Pieces> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match std::str::from_utf8(&body) {
            Ok(HANG) => {
                let _ = self.cut.subscribe().wait_for(|cut| *cut).await;
                whole(503, "{}")
            }
            Ok(ENDLESS) => self.pieces(guard, &[b'x'; 16 * 1024], usize::MAX, false),
            Ok(SILENT) => self.pieces(guard, b"data: 1\n\n", 1, true),
            Ok(THREE) => self.pieces(guard, b"data: 1\n\n", 3, false),
            Ok("\"endless events\"") => self.pieces(guard, EVENT, usize::MAX, false),
            Ok(BIG) => whole(200, vec![b'y'; 3 << 20]),
            Ok(PANIC) => panic!("as asked"),
            _ => whole(200, body),
        }
    }
}

impl CallService for Stub {
    type Stream = Pieces;
    type Admission = Admission;

    fn admit(self: &Arc<Self>, head: RequestHead) -> Result<Admission, CallAnswer<Pieces>> {
        let RequestHead { target, caller } = head;
        let key = match &target {
            RequestTarget::SocketHandshake | RequestTarget::KeyCheck => self.known(&caller.credentials),
            _ => known(&caller.credentials),
        };
        match &target {
            RequestTarget::Call(_) | RequestTarget::SocketTurn { .. } => {
                self.attempts.fetch_add(1, Ordering::SeqCst);
                *self.peer.lock().unwrap() = Some(caller.peer.address);
                *self.certificate.lock().unwrap() = caller.credentials.certificate.as_deref().cloned();
            }
            RequestTarget::SocketHandshake => {
                self.handshakes.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
        let is_late = caller.credentials.authorization.as_deref() == Some(LATE);
        let late = || (is_late && *self.late_is_known.borrow()).then(|| KeyId::new("late").unwrap());
        let key = key.or_else(late).ok_or_else(|| whole(401, "{}"))?;
        if let RequestTarget::SocketTurn { session, message } = &target {
            assert_eq!(*session, Some(SESSION));
            if message.starts_with(b"no turn") {
                return Err(whole(400, "{\"error\":1}"));
            }
        }
        let counter = match &target {
            RequestTarget::Call(_) | RequestTarget::SocketTurn { .. } | RequestTarget::Object(_) => {
                Some(&self.in_flight)
            }
            RequestTarget::SocketHandshake => Some(&self.sessions),
            _ => None,
        };
        let guard = counter.map(|counter| {
            counter.fetch_add(1, Ordering::SeqCst);
            Guard(Arc::clone(counter))
        });
        Ok(Admission { key, target, guard })
    }

    fn wait_before_admission(&self, authorization: Option<&[u8]>, _: Option<&[u8]>) -> Option<AdmissionWait> {
        let mut is_known = self.late_is_known.subscribe();
        let must_wait = authorization == Some(LATE) && !*is_known.borrow();
        must_wait.then(|| -> AdmissionWait {
            Box::pin(async move {
                let _ = is_known.wait_for(|is_known| *is_known).await;
            })
        })
    }

    /// Answers calls as their body selects. Repeats any other request, with its body if it has one.
    async fn serve<B: BodySource>(self: &Arc<Self>, admission: Admission, body: B) -> CallAnswer<Pieces> {
        let Admission { target, guard, .. } = admission;
        let body = match &target {
            RequestTarget::Call(_) | RequestTarget::Question(_) => body.read().await,
            RequestTarget::Object(operation) if operation.method == ObjectMethod::Post => body.read().await,
            RequestTarget::SocketTurn { message, .. } => Ok(message.clone()),
            _ => Ok(Bytes::new()),
        };
        let body = match body {
            Ok(body) => body,
            Err(refusal) => return not_taken(&refusal),
        };
        let text = String::from_utf8_lossy(&body);
        match target {
            RequestTarget::Call(_) | RequestTarget::SocketTurn { .. } => {
                self.call(guard.unwrap(), body).await
            }
            RequestTarget::Question(question) => whole(200, format!("{question:?} {text}")),
            RequestTarget::Object(ObjectOperation { method, path, query }) => {
                whole(200, format!("{method:?} {path} {query:?} {text}"))
            }
            RequestTarget::ModelList { dialect, query } => {
                whole(200, format!("\"models {dialect:?} {}\"", query.len()))
            }
            RequestTarget::Model { dialect, name } => whole(200, format!("\"model {name} {dialect:?}\"")),
            RequestTarget::RequestTrace { id } => whole(200, format!("\"request {id}\"")),
            RequestTarget::Receipt { id } => whole(200, format!("\"receipt {id}\"")),
            RequestTarget::SocketHandshake | RequestTarget::KeyCheck => panic!("it is not served"),
        }
    }

    fn not_ready(&self, _model: Option<&str>) -> Vec<String> {
        if *self.cut.borrow() { vec!["a stub that was cut off".to_owned()] } else { Vec::new() }
    }

    async fn drain(&self, within: Duration) -> usize {
        let none_left = async {
            while self.in_flight.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let _ = tokio::time::timeout(within, none_left).await;
        self.cut.send_replace(true);
        self.in_flight.load(Ordering::SeqCst)
    }
}

impl TraceSink for Stub {
    fn record(&self, record: Box<TraceRecord>) {
        self.refusals.lock().unwrap().push(*record);
    }
}

/// A running edge.
pub(crate) struct Served {
    pub(crate) stub: Arc<Stub>,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: Option<SocketAddr>,
    pub(crate) certificate: Option<Arc<TlsCertificate>>,
    notice: oneshot::Sender<()>,
    stop: oneshot::Sender<()>,
    done: JoinHandle<ServeReport>,
}

/// Maximum time that a test waits for a state on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than [`PATIENCE`]. A test that depends on this timeout fails.
pub(crate) const NEVER: Duration = Duration::from_secs(3_600);

/// The default limits on a free port, without timeouts. Each test sets the timeout that it checks.
pub(crate) fn config() -> EdgeConfig {
    EdgeConfig {
        header_timeout: NEVER,
        body_progress_timeout: NEVER,
        body_total_timeout: NEVER,
        write_timeout: NEVER,
        idle_timeout: NEVER,
        ..EdgeConfig::new(([127, 0, 0, 1], 0).into())
    }
}

/// Starts an edge with the stub.
pub(crate) async fn serve(config: EdgeConfig) -> Served {
    serve_for(config, Duration::from_millis(200)).await
}

/// Starts an edge with the stub and a given drain time.
pub(crate) async fn serve_for(config: EdgeConfig, drain: Duration) -> Served {
    let stub = Stub::new();
    let metrics = Arc::new(|accept: Option<&str>, numbers: &[EdgeNumber]| {
        let lines = numbers.iter().map(|number| format!("{} {}\n", number.name, number.value));
        let page = format!("headrace_test 1\n{}asked for {accept:?}\n", lines.collect::<String>());
        ("text/plain; version=0.0.4", page)
    });
    let internal_api: Option<Arc<dyn InternalApi>> =
        Some(Arc::new(crate::internal_api::EchoApi(Arc::clone(&stub))));
    let (service, traces, clock) = (Arc::clone(&stub), Arc::clone(&stub), Arc::new(SystemClock::new()));
    let edge = Edge::bind(config, service, internal_api, metrics, traces, clock);
    let edge = edge.await.unwrap();
    let (address, metrics, certificate) = (edge.local_addr(), edge.metrics_addr(), edge.certificate());
    let (notice, noticed) = oneshot::channel::<()>();
    let (stop, stopped) = oneshot::channel();
    let done = tokio::spawn(edge.serve_with_notice(
        async {
            if noticed.await.is_err() {
                std::future::pending::<()>().await;
            }
        },
        async {
            let _ = stopped.await;
        },
        drain,
    ));
    Served { stub, address, metrics, certificate, notice, stop, done }
}

impl Served {
    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends `request` unchanged on a new connection. Returns everything until the server closes.
    pub(crate) async fn raw(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        // The server may have answered and closed before everything was sent.
        let _ = stream.write_all(request.as_bytes()).await;
        rest(&mut stream).await
    }

    /// Announces the shutdown, during which calls are still accepted. Returns the sender that ends that period.
    pub(crate) fn announce_end(self) -> (oneshot::Sender<()>, JoinHandle<ServeReport>) {
        let _ = self.notice.send(());
        (self.stop, self.done)
    }

    /// Stops the edge without waiting for it.
    pub(crate) fn stop(self) -> JoinHandle<ServeReport> {
        let _ = self.stop.send(());
        self.done
    }
}

/// Returns everything until the server closes. Fails if that takes longer than [`PATIENCE`].
pub(crate) async fn rest(stream: &mut TcpStream) -> String {
    let mut out = Vec::new();
    let reading = stream.read_to_end(&mut out);
    let read = tokio::time::timeout(PATIENCE, reading).await.expect("the server did not close");
    // A reset after the answer does not affect the answer.
    if let Err(error) = read {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Reads until `end` has arrived.
pub(crate) async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut out = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&out).contains(end) {
            let mut buffer = [0; 1024];
            let n = stream.read(&mut buffer).await.unwrap();
            assert!(n > 0, "closed after {:?}", String::from_utf8_lossy(&out));
            out.extend_from_slice(buffer.get(..n).unwrap());
        }
    };
    tokio::time::timeout(PATIENCE, reading).await.expect("it never came");
    String::from_utf8(out).unwrap()
}

/// Reads until `end` has arrived. Returns `None` if the server closes first.
pub(crate) async fn try_read_until(stream: &mut TcpStream, end: &str) -> Option<String> {
    let mut out = Vec::new();
    while !String::from_utf8_lossy(&out).contains(end) {
        let mut buffer = [0; 1024];
        let read = stream.read(&mut buffer).await.ok().filter(|&read| read > 0)?;
        out.extend_from_slice(buffer.get(..read)?);
    }
    String::from_utf8(out).ok()
}

/// A request in HTTP/1.1 with a good key and these further header lines.
pub(crate) fn post(lines: &str, body: &str) -> String {
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer good\r\ncontent-length: {}\r\n{lines}\r\n{body}",
        body.len()
    )
}

/// Returns where the answers in a connection's bytes begin: at `HTTP/1.`, a digit, a space and a digit. A message may
/// name the protocol, too.
pub(crate) fn status_lines(answers: &str) -> impl Iterator<Item = usize> {
    let starts = answers.match_indices("HTTP/1.").map(|(at, _)| at);
    let is_status = |at: &usize| {
        let rest = answers.as_bytes().get(at + 7..at + 10);
        rest.is_some_and(|rest| rest[0].is_ascii_digit() && rest[1] == b' ' && rest[2].is_ascii_digit())
    };
    starts.filter(is_status)
}

/// Asserts the status of an HTTP/1.1 answer.
#[track_caller]
pub(crate) fn assert_status(answer: &str, status: u16) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "expected {status}: {answer:?}");
}
