//! Measures the way to a server with one small request. Must not know what the answer says.

use std::time::{Duration, Instant};

use crate::connect::Watch;
use crate::{Client, ClientError, ConnectTimes};

/// A path that every server answers, if only with an error.
const PATH: &str = "healthz";

/// The result of one probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// Time to connect. `None` if a connection was reused.
    pub connect: Option<ConnectTimes>,
    /// Time from sending the request over an established connection to the response's headers: one round trip plus the
    /// server's time.
    pub round_trip: Duration,
    /// The HTTP status of the response.
    pub status: u16,
    /// The server's address, as far as the transport reports it.
    pub remote: Option<std::net::SocketAddr>,
}

impl Client {
    /// Sends `GET /healthz` and measures it. The connection is kept for the next request.
    ///
    /// # Errors
    /// A [`ClientError`] if no server can be reached, or if it does not speak HTTP. Any status counts as a success.
    pub async fn probe(&self) -> Result<Probe, ClientError> {
        let watch = Watch::default();
        let began = Instant::now();
        let mut response = watch
            .over(self.request(reqwest::Method::GET, PATH)?.send())
            .await
            .map_err(|error| self.unreachable(&error))?;
        let took = began.elapsed();
        let (status, remote) = (response.status().as_u16(), response.remote_addr());
        // A connection can be reused only if the response was read completely.
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

/// Maximum bytes of the response that are read.
const MAX_ANSWER_BYTES: usize = 1 << 20;
