//! An upstream for tests that injects faults. It answers well, or with the fault that a request names, byte for byte.
//! It speaks both dialects over plain HTTP/1.1 and counts what it saw. Knows no other crate of the workspace.

mod answers;
mod fault;
mod request;
mod script;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

pub use answers::{INPUT_TOKENS, OUTPUT_TOKENS, TEXT};
pub use fault::Fault;
pub use request::Request;
pub use script::event_stream;
use script::{Step, script};

/// A running server on a free local port. Dropping it stops the server and all its connections.
#[derive(Debug)]
pub struct FaultServer {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    serving: AbortHandle,
}

/// What a server saw.
#[derive(Debug, Clone, Default)]
pub struct Seen {
    /// Accepted connections.
    pub connections: usize,
    /// Connections that the client closed during an answer, or while it waited for one.
    pub broken_off: usize,
    /// Requests, in the order of arrival.
    pub requests: Vec<Request>,
    chosen: HashMap<Fault, usize>,
}

impl FaultServer {
    /// Starts a server.
    ///
    /// # Errors
    /// An error if no port can be bound.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(|_| None).await
    }

    /// Starts a server with custom answers. `own` returns the bytes for the requests that it answers itself, such as
    /// those of [`event_stream`].
    ///
    /// # Errors
    /// An error if no port can be bound.
    pub async fn start_with(
        own: impl Fn(&Request) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let seen = Arc::new(Mutex::new(Seen::default()));
        let serving = tokio::spawn(serve(listener, Arc::clone(&seen), Arc::new(own))).abort_handle();
        Ok(Self { address, seen, serving })
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL. Each request names its fault by its model.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The base URL at which every request gets this fault.
    pub fn url_of(&self, fault: Fault) -> String {
        format!("http://{}/{}", self.address, fault.name())
    }

    /// What the server has seen so far.
    pub fn seen(&self) -> Seen {
        self.seen.lock().clone()
    }

    /// Waits until `count` answers were broken off, at most `within`. Returns `false` if the time runs out.
    pub async fn saw_broken_off(&self, count: usize, within: Duration) -> bool {
        let watched = async {
            while self.seen.lock().broken_off < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(within, watched).await.is_ok()
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The test's own answers.
type Own = Arc<dyn Fn(&Request) -> Option<Vec<u8>> + Send + Sync>;

async fn serve(listener: TcpListener, seen: Arc<Mutex<Seen>>, own: Own) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        seen.lock().connections += 1;
        connections.spawn(connection(stream, Arc::clone(&seen), Arc::clone(&own)));
        while connections.try_join_next().is_some() {}
    }
}

/// The state of a connection after a script.
enum Left {
    /// The next request may arrive.
    Open,
    Closed,
    Reset,
    ByClient,
}

async fn connection(stream: TcpStream, seen: Arc<Mutex<Seen>>, own: Own) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let (mut from, mut to) = stream.into_split();
    let mut held = Vec::new();
    while let Some(request) = Request::read(&mut from, &mut held).await {
        let fault = request.fault();
        let count = {
            let mut seen = seen.lock();
            let count = seen.chosen.entry(fault).or_default();
            *count += 1;
            let count = *count;
            seen.requests.push(request.clone());
            count
        };
        let steps = match own(&request) {
            Some(bytes) => vec![Step::Send(bytes)],
            None => script(fault, &request, count),
        };
        match play(steps, &mut from, &mut to, &mut held).await {
            Left::Open => {}
            Left::Closed => return,
            Left::Reset => {
                // A close without lingering is a reset, unless the dropped half has already shut down the connection.
                drop(to.as_ref().set_zero_linger());
                return to.forget();
            }
            Left::ByClient => {
                seen.lock().broken_off += 1;
                return;
            }
        }
    }
}

async fn play(
    steps: Vec<Step>,
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    held: &mut Vec<u8>,
) -> Left {
    for step in steps {
        let stayed = match step {
            Step::Send(bytes) => to.write_all(&bytes).await.is_ok(),
            Step::Pause(time) => !left(from, held, Some(time)).await,
            Step::Hang => !left(from, held, None).await,
            Step::Repeat(bytes, every) => repeat(&bytes, every, from, to, held).await,
            Step::Close => return Left::Closed,
            Step::Reset => return Left::Reset,
        };
        if !stayed {
            return Left::ByClient;
        }
    }
    Left::Open
}

/// Sends the same bytes again and again until the client disconnects.
async fn repeat(
    bytes: &[u8],
    every: Duration,
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    held: &mut Vec<u8>,
) -> bool {
    loop {
        if to.write_all(bytes).await.is_err() || left(from, held, Some(every)).await {
            return false;
        }
    }
}

/// Waits for `time`, or forever if it is `None`. Returns whether the client disconnected.
async fn left(from: &mut OwnedReadHalf, held: &mut Vec<u8>, time: Option<Duration>) -> bool {
    let watch = async {
        loop {
            match from.read_buf(held).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
    };
    match time {
        Some(time) => tokio::time::timeout(time, watch).await.is_ok(),
        None => {
            watch.await;
            true
        }
    }
}
