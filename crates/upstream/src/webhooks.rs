//! Sends webhooks: one `POST` to an address outside. The same policy holds as for URLs in calls. The addresses of a name
//! are checked when a connection is made, so callers' look-ups delay no webhook. Must not know what a webhook says, or when
//! it is repeated.

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
        if !policy.may_allow(url) {
            return Err(
                "the URL is not allowed: it must be https with a public host, or its host must be listed"
                    .to_owned(),
            );
        }
        let mut request = self.client_for(policy).post(url).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let response = request.body(body).send().await.map_err(|error| cause(&error.without_url()))?;
        let status = response.status().as_u16();
        Ok(WebhookAnswer { status, retry_after: retry_after(status, response.headers()) })
    }

    /// Returns the client for the URLs that a policy allows.
    fn client_for(&self, policy: &UrlPolicy) -> &reqwest::Client {
        if *policy == UrlPolicy::Public { &self.public } else { &self.listed }
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

/// Resolves names, and fails if one of the addresses is not public. A client with it connects to the addresses that were
/// checked.
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

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{IpAddr, TcpListener};
    use std::process::Command;
    use std::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::urls::AllowedHost;

    /// Set in the process of a test whose environment names a proxy.
    const CHILD: &str = "HEADRACE_TEST_WEBHOOK_PROXY";

    /// An endpoint on this machine that answers with status 204. Returns its port and the requests that it gets.
    fn endpoint() -> (u16, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let (mut text, mut chunk) = (String::new(), [0; 4096]);
                let is_whole = |text: &str| {
                    text.split_once("\r\n\r\n").is_some_and(|(head, body)| {
                        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                        body.len() >= length.map_or(0, |length| length.parse::<usize>().unwrap())
                    })
                };
                while !is_whole(&text) {
                    let count = stream.read(&mut chunk).unwrap();
                    if count == 0 {
                        break;
                    }
                    text.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
                }
                let _ = stream.write_all(b"HTTP/1.1 204 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                if send.send(text).is_err() {
                    return;
                }
            }
        });
        (port, receive)
    }

    fn listed(hosts: &[&str]) -> UrlPolicy {
        UrlPolicy::Hosts(hosts.iter().map(|host| AllowedHost::parse(host).unwrap()).collect())
    }

    async fn post(url: &str, policy: &UrlPolicy) -> Result<WebhookAnswer, String> {
        let headers = [("webhook-id", "evt_1".to_owned())];
        WebhookSender::new().unwrap().post(url, policy, &headers, "{}".to_owned()).await
    }

    #[tokio::test]
    async fn a_name_is_resolved_only_if_all_its_addresses_are_public() {
        for (name, is_allowed) in [
            ("localhost", false),
            ("127.0.0.1", false),
            ("10.0.0.7", false),
            ("169.254.169.254", false),
            ("::1", false),
            ("93.184.216.34", true),
            ("2606:4700::1111", true),
        ] {
            let found = PublicResolver.resolve(name.parse().unwrap()).await;
            match found {
                Ok(addresses) => {
                    assert!(is_allowed, "{name}");
                    assert!(
                        addresses.map(|address| address.ip()).eq([name.parse::<IpAddr>().unwrap()]),
                        "{name}"
                    );
                }
                Err(why) => {
                    assert!(!is_allowed && why.to_string().contains("not public"), "{name}: {why}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_name_with_a_private_address_is_reached_only_if_its_host_is_listed() {
        let (port, received) = endpoint();
        let (url, host) = (format!("http://localhost:{port}/hook"), format!("http://localhost:{port}"));
        let sender = WebhookSender::new().unwrap();
        let refused = sender.client_for(&UrlPolicy::Public).get(&url).send().await.unwrap_err();
        assert!(cause(&refused).contains("an address that is not public"), "{refused:?}");
        assert!(received.try_recv().is_err(), "no connection is made");
        let answer = post(&url, &listed(&[&host])).await.unwrap();
        assert_eq!(answer, WebhookAnswer { status: 204, retry_after: None });
        assert!(received.recv_timeout(Duration::from_secs(60)).unwrap().contains("webhook-id: evt_1"));
    }

    #[tokio::test]
    async fn an_error_says_whether_the_url_is_not_allowed_or_cannot_be_reached() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let closed = format!("http://{closed}");
        // A label of a name has at most 63 bytes, so the network is not asked for it.
        let unknown = format!("https://{}.example.com/hook", "a".repeat(64));
        let not_allowed = "the URL is not allowed";
        for (url, policy, part) in [
            ("http://example.com/hook", UrlPolicy::Public, not_allowed),
            ("https://10.0.0.7/hook", UrlPolicy::Public, not_allowed),
            ("https://localhost/hook", UrlPolicy::Public, not_allowed),
            ("https://example.com/hook", UrlPolicy::Off, not_allowed),
            ("https://example.com/hook", listed(&["example.org"]), not_allowed),
            (unknown.as_str(), UrlPolicy::Public, "dns name"),
            (closed.as_str(), listed(&[&closed]), "refused"),
        ] {
            let why = post(url, &policy).await.unwrap_err();
            assert!(why.contains(part), "{url}: {why}");
            assert_eq!(why.contains(not_allowed), part == not_allowed, "{url}: {why}");
        }
    }

    #[tokio::test]
    async fn a_proxy_of_the_environment_is_not_used() {
        if std::env::var_os(CHILD).is_some() {
            let (port, received) = endpoint();
            let (url, host) = (format!("http://localhost:{port}/hook"), format!("http://localhost:{port}"));
            post(&url, &listed(&[&host])).await.unwrap();
            received.recv_timeout(Duration::from_secs(60)).unwrap();
            WebhookSender::new().unwrap().public.get(&url).send().await.unwrap_err();
            return;
        }
        let (port, received) = endpoint();
        let proxy = format!("http://127.0.0.1:{port}");
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "webhooks::tests::a_proxy_of_the_environment_is_not_used"])
            .envs([("http_proxy", &proxy), ("all_proxy", &proxy)])
            .env(CHILD, "1")
            .env_remove("no_proxy")
            .env_remove("NO_PROXY")
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"), "the test ran");
        assert!(received.try_recv().is_err(), "the proxy gets nothing");
    }
}
