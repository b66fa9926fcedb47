//! One small question to a server, to see what the way there takes. Must not know what the answer says.

use std::time::{Duration, Instant};

use crate::connect::Watch;
use crate::{Client, ClientError, ConnectTimes};

/// A question that any server answers, if only by refusing it.
const PATH: &str = "healthz";

/// What one question took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Making a connection; `None` where there was one.
    pub connect: Option<ConnectTimes>,
    /// From the question, over a connection that stands, to the answer's head: a round trip, and the server's time.
    pub round_trip: Duration,
    /// What was answered.
    pub status: u16,
    /// Where the server is, as far as the transport tells.
    pub remote: Option<std::net::SocketAddr>,
}

impl Client {
    /// Asks `GET /healthz`, and times it. The connection is kept for the next.
    ///
    /// # Errors
    /// Nobody could be reached, or it was no HTTP. Any status is an answer.
    pub async fn probe(&self) -> Result<Probe, ClientError> {
        let watch = Watch::default();
        let began = Instant::now();
        let mut response = watch
            .over(self.request(reqwest::Method::GET, PATH)?.send())
            .await
            .map_err(|error| self.unreachable(&error))?;
        let took = began.elapsed();
        let (status, remote) = (response.status().as_u16(), response.remote_addr());
        // A connection whose answer was not read cannot be used again.
        let mut left = MAX_ANSWER_BYTES;
        while let Ok(Some(bytes)) = response.chunk().await {
            left = left.saturating_sub(bytes.len());
            if left == 0 {
                break;
            }
        }
        let connect = watch.times();
        let round_trip = took.saturating_sub(connect.map(|times| times.total()).unwrap_or_default());
        Ok(Probe { connect, round_trip, status, remote })
    }
}

/// How much of an answer is read.
const MAX_ANSWER_BYTES: usize = 1 << 20;
