//! Looks up the address of a server's name periodically. When it changes, new calls use new connections, and calls in
//! progress finish on theirs. Without this, open connections would keep calls on a machine that the name has left.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::server::UpstreamServer;

/// How often a name is looked up.
const EVERY: Duration = Duration::from_secs(30);

/// Looks up the name until the server is no longer in use. Returns at once if there is none to look up: the server has
/// an IP address, or a proxy that resolves names itself.
pub(crate) async fn follow(server: Weak<UpstreamServer>) {
    let Some(name) = server.upgrade().and_then(|server| name_of(&server)) else { return };
    let lookup = || async { Ok(tokio::net::lookup_host(&name).await?.collect::<Vec<SocketAddr>>()) };
    follow_by(server, EVERY, lookup).await;
}

/// Returns name and port of a server, if its name is looked up here.
fn name_of(server: &Arc<UpstreamServer>) -> Option<String> {
    server.spec.looked_up().map(|(host, port)| format!("{host}:{port}"))
}

async fn follow_by<F>(server: Weak<UpstreamServer>, every: Duration, lookup: impl Fn() -> F)
where
    F: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    // Addresses that open connections may lead to.
    let mut known = BTreeSet::new();
    loop {
        // If a look-up fails, the name keeps its previous addresses.
        if let Ok(found) = lookup().await {
            let found: BTreeSet<IpAddr> = found.iter().map(SocketAddr::ip).collect();
            let Some(server) = server.upgrade() else { return };
            if found.is_empty() || !known.is_disjoint(&found) {
                // Some DNS servers return only a few of a name's addresses at a time.
                known.extend(found);
            } else {
                let moved = !known.is_empty();
                known = found;
                if moved {
                    server.renew_clients();
                }
            }
        }
        tokio::time::sleep(every).await;
        if server.strong_count() == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::Mutex;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::{UpstreamKind, UpstreamSpec};

    /// Starts a server that keeps connections open. Also returns the number of connections it accepted.
    async fn served() -> (SocketAddr, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (at, made) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&made);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    let mut bytes = [0; 4096];
                    while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                    }
                });
            }
        });
        (at, made)
    }

    #[tokio::test]
    async fn where_a_name_leads_elsewhere_new_calls_take_new_connections() {
        let (at, made) = served().await;
        let url = format!("http://localhost:{}", at.port());
        let server =
            Arc::new(UpstreamServer::new(UpstreamSpec::new("far", UpstreamKind::OpenAi, &url)).unwrap());
        assert_eq!(name_of(&server).unwrap(), format!("localhost:{}", at.port()));
        let leads = Arc::new(Mutex::new(vec!["10.0.0.1", "10.0.0.2"]));
        let lookups = Arc::new(AtomicUsize::new(0));
        let lookup = {
            let (leads, lookups) = (Arc::clone(&leads), Arc::clone(&lookups));
            move || {
                lookups.fetch_add(1, Ordering::SeqCst);
                let found = leads.lock().iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 80)).collect();
                std::future::ready(Ok(found))
            }
        };
        let following = tokio::spawn(follow_by(Arc::downgrade(&server), Duration::from_millis(1), lookup));
        let twice_more = || async {
            let seen = lookups.load(Ordering::SeqCst);
            while lookups.load(Ordering::SeqCst) < seen + 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let call = || async {
            let answer = server.client().get(&url).send().await.unwrap();
            assert_eq!(answer.text().await.unwrap(), "{}");
            // The connection becomes idle when its task has seen the end.
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        twice_more().await;
        for connections in [1, 1] {
            call().await;
            assert_eq!(made.load(Ordering::SeqCst), connections);
        }
        // A part of the addresses, or additional ones: no address has moved.
        for part in [vec!["10.0.0.2"], vec!["10.0.0.2", "10.0.0.3"], vec!["10.0.0.3"], vec![]] {
            *leads.lock() = part;
            twice_more().await;
            call().await;
            assert_eq!(made.load(Ordering::SeqCst), 1);
        }
        *leads.lock() = vec!["10.9.9.9"];
        twice_more().await;
        for connections in [2, 2] {
            call().await;
            assert_eq!(made.load(Ordering::SeqCst), connections);
        }
        drop(server);
        following.await.unwrap();
    }

    #[test]
    fn addresses_and_proxied_names_are_not_looked_up() {
        let name = |url: &str, proxy: Option<&str>| {
            let mut spec = UpstreamSpec::new("far", UpstreamKind::OpenAi, url);
            spec.proxy = proxy.map(Into::into);
            name_of(&Arc::new(UpstreamServer::new(spec).unwrap()))
        };
        assert_eq!(name("http://127.0.0.1:9", None), None);
        assert_eq!(name("https://[::1]:9", None), None);
        assert_eq!(name("https://api.example.com/v1", Some("http://127.0.0.1:3128")), None);
        assert_eq!(name("https://api.example.com/v1", None).as_deref(), Some("api.example.com:443"));
    }
}
