//! Sends webhooks: one `POST` to an address outside. The same policy holds as for URLs in calls, and the address that was
//! checked is the one that is connected to. Must not know what a webhook says, or when it is repeated.

use std::net::SocketAddr;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;

use crate::retry_after::retry_after;
use crate::urls::{UrlPolicy, is_public};

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the whole exchange may take.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(20);

/// The answer of an endpoint. Its body is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebhookAnswer {
    /// The HTTP status.
    pub status: u16,
    /// How long the endpoint asks to wait before another try.
    pub retry_after: Option<Duration>,
}

/// Sends webhooks.
#[derive(Debug, Clone)]
pub struct WebhookSender {
    /// For endpoints on the public internet.
    public: reqwest::Client,
    /// For hosts that the operator lists.
    listed: reqwest::Client,
}

impl WebhookSender {
    /// Makes a sender.
    ///
    /// # Errors
    /// Why no client can be built, as text. For example, this machine has no root certificates.
    pub fn new() -> Result<Self, String> {
        let builder = || {
            reqwest::Client::builder()
                // A redirect could lead to an address inside.
                .redirect(Policy::none())
                .retry(reqwest::retry::never())
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(TOTAL_TIMEOUT)
                .pool_max_idle_per_host(0)
                .no_proxy()
        };
        let built = |builder: reqwest::ClientBuilder| builder.build().map_err(|error| cause(&error));
        Ok(Self { public: built(builder().dns_resolver(PublicResolver))?, listed: built(builder())? })
    }

    /// Posts a JSON body with these headers.
    ///
    /// # Errors
    /// Why there is no answer, as text: a URL that the policy does not allow, no connection, no answer in time.
    pub async fn post(
        &self,
        url: &str,
        policy: &UrlPolicy,
        headers: &[(&'static str, String)],
        body: String,
    ) -> Result<WebhookAnswer, String> {
        if policy.screen_now(&[url.to_owned()]).await.is_err() {
            return Err("the address is not allowed: it must be https and public, or listed".to_owned());
        }
        let client = if *policy == UrlPolicy::Public { &self.public } else { &self.listed };
        let mut request = client.post(url).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let response = request.body(body).send().await.map_err(|error| cause(&error.without_url()))?;
        let status = response.status().as_u16();
        Ok(WebhookAnswer { status, retry_after: retry_after(status, response.headers()) })
    }
}

fn cause(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

/// Resolves names, and fails if one of the addresses is not public. So a name that changes its address after it was checked
/// leads nowhere.
#[derive(Debug, Clone, Copy)]
struct PublicResolver;

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            if found.is_empty() || !found.iter().all(|address| is_public(address.ip())) {
                return Err("the name has an address that is not public".into());
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}
