//! Requests to the other gateways that share the stores: which ones there are, and how one is asked. Must not know what is
//! asked.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use headrace_domain::Clock;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use serde_json::Value;

pub(crate) mod credential;
pub(crate) mod find;
pub(crate) mod forget;
pub(crate) mod merge;
pub(crate) mod search_all;
pub(crate) mod usage;

use credential::{GatewayCredential, HEADER};

/// How long the other gateways may take to answer, all together.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);
/// Maximum bytes of an answer.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// A gateway that shares the stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayPeer {
    /// Its name for operators (`gateway.name`).
    pub name: String,
    /// The URL of its admin listener (`gateway.advertise`). `None` if other gateways cannot ask it.
    pub address: Option<String>,
}

/// The gateways that share the stores.
pub trait GatewayPeers: Send + Sync {
    /// This gateway.
    fn own(&self) -> GatewayPeer;

    /// The other gateways that are live. Waits for a database, for less than two seconds.
    ///
    /// # Errors
    /// Returns why they cannot be read.
    fn others(&self) -> Result<Vec<GatewayPeer>, String>;

    /// The names of other gateways that were live in the last days and are not now. They have files of their own. Waits
    /// like [`GatewayPeers::others`].
    ///
    /// # Errors
    /// Returns why they cannot be read.
    fn ended(&self) -> Result<Vec<String>, String>;
}

/// Asks other gateways, and checks what they ask.
#[derive(Clone)]
pub struct PeerAccess {
    peers: Arc<dyn GatewayPeers>,
    credential: GatewayCredential,
    clock: Arc<dyn Clock>,
    http: Client,
}

impl PeerAccess {
    /// Builds the access from a secret that all gateways with the same stores have in common.
    ///
    /// # Errors
    /// Returns why there is no HTTP client.
    pub fn new(
        peers: Arc<dyn GatewayPeers>,
        shared_secret: &[u8; 32],
        clock: Arc<dyn Clock>,
    ) -> Result<Self, String> {
        let http = Client::builder()
            // The address is the operator's. An answer must not lead elsewhere.
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .timeout(DEADLINE)
            .build()
            .map_err(|error| cause(&error))?;
        Ok(Self { peers, credential: GatewayCredential::derive(shared_secret), clock, http })
    }

    /// The gateways that share the stores.
    pub(crate) fn peers(&self) -> Arc<dyn GatewayPeers> {
        Arc::clone(&self.peers)
    }

    /// Returns whether a gateway with the same secret made a request, a minute ago at most.
    pub(crate) fn is_peer(&self, header: Option<&str>, path: &str, body: &[u8]) -> bool {
        header.is_some_and(|header| self.credential.verify(header, self.clock.now(), path, body))
    }

    /// Sends a body in JSON to a path of a gateway, and returns its answer.
    ///
    /// # Errors
    /// Returns why there is no answer, in words for operators.
    pub(crate) async fn ask(&self, peer: &GatewayPeer, path: &str, body: &Value) -> Result<Value, String> {
        self.ask_within(peer, path, body, DEADLINE).await
    }

    /// Like [`Self::ask`], with another deadline.
    ///
    /// # Errors
    /// As for [`Self::ask`].
    pub(crate) async fn ask_within(
        &self,
        peer: &GatewayPeer,
        path: &str,
        body: &Value,
        deadline: Duration,
    ) -> Result<Value, String> {
        let address = peer.address.as_deref().ok_or("gateway.advertise is not set there")?;
        let body = Bytes::from(body.to_string());
        let signed = self.credential.sign(self.clock.now(), path, &body);
        let url = format!("{}{path}", address.trim_end_matches('/'));
        let request = self.http.post(url).header(HEADER, signed).header("content-type", "application/json");
        let request = request.timeout(deadline);
        let asked = async {
            let mut response = request.body(body).send().await.map_err(|error| cause(&error))?;
            match response.status() {
                StatusCode::OK => {}
                StatusCode::UNAUTHORIZED => {
                    return Err(
                        "it refused this gateway: it has other secrets, or a clock that differs".into()
                    );
                }
                StatusCode::NOT_FOUND => return Err("its program does not answer other gateways".into()),
                status => return Err(format!("it answered {status}")),
            }
            let mut read = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(|error| cause(&error))? {
                if read.len().saturating_add(chunk.len()) > MAX_ANSWER_BYTES {
                    return Err(format!("its answer has more than {MAX_ANSWER_BYTES} bytes"));
                }
                read.extend_from_slice(&chunk);
            }
            serde_json::from_slice(&read).map_err(|error| format!("its answer is no JSON: {error}"))
        };
        let silent = |_| Err(format!("no answer within {} s", deadline.as_secs()));
        tokio::time::timeout(deadline, asked).await.unwrap_or_else(silent)
    }
}

/// The text for a gateway that was silent.
pub(crate) fn no_answer() -> String {
    format!("no answer within {} s", DEADLINE.as_secs())
}

/// The root cause of an error, such as "connection refused".
fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return no_answer();
    }
    let mut last: &dyn Error = error;
    while let Some(below) = last.source() {
        last = below;
    }
    last.to_string()
}
