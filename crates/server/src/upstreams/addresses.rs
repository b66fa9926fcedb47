//! Servers by the addresses of a name: if a name has several servers of its own, each address is one server. Must not
//! know how a call is relayed.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use headrace_config::ServerSettings;
use headrace_config::relayed::UpstreamConfig;
use headrace_upstream::{Upstream, UpstreamSpec};
use tokio::time::{Instant, timeout};

use super::names::TrackedName;
use super::{ASK_AGAIN, ASK_WITHIN, AskContext, ListedModels, UpstreamRegistry, UpstreamSite};

/// Interval of DNS lookups.
const LOOK_UP_EVERY: Duration = Duration::from_secs(30);
/// Time limit for a connection to an address that could not be reached before.
const REACHED_WITHIN: Duration = Duration::from_secs(1);

/// Whether a connection to the server succeeds now, regardless of its answer.
async fn is_reached(upstream: Upstream) -> bool {
    let _ = timeout(REACHED_WITHIN, upstream.probe()).await;
    let figures = upstream.figures();
    figures.down.is_none() && figures.last_contact_age.is_some()
}

impl UpstreamRegistry {
    /// Looks up the configuration's names that have not been looked up yet, for a bounded time. A name that is not
    /// found is looked up again later.
    pub async fn look_up(&self, config: &ServerSettings) {
        let known = |upstream: &&UpstreamConfig| !self.state().names.0.contains_key(&upstream.fingerprint);
        let new: Vec<_> = config.upstreams.iter().filter(known).cloned().collect();
        let all = config.upstreams.iter().map(|upstream| upstream.fingerprint).collect::<Vec<_>>();
        let names = new.into_iter().filter(|upstream| upstream.spec.looked_up().is_some());
        let names = names.map(|upstream| (upstream.fingerprint, TrackedName::new(upstream.spec)));
        let names: Vec<_> = names.collect();
        let asked = names.iter().map(|(fingerprint, name)| (*fingerprint, name.spec.clone())).collect();
        {
            let mut state = self.state();
            state.names.0.extend(names);
            state.names.0.retain(|fingerprint, _| all.contains(fingerprint));
        }
        self.look_up_all(asked).await;
    }

    async fn look_up_all(&self, names: Vec<([u8; 32], UpstreamSpec)>) {
        let lookups: Vec<_> = names
            .into_iter()
            .filter_map(|(fingerprint, spec)| {
                let (name, port) = spec.looked_up()?;
                let lookup = timeout(ASK_WITHIN, (self.resolver)(name, port));
                Some((fingerprint, tokio::spawn(lookup)))
            })
            .collect();
        for (fingerprint, lookup) in lookups {
            // A name whose lookup fails keeps its addresses.
            if let Ok(Ok(Ok(found))) = lookup.await
                && let Some(name) = self.state().names.0.get_mut(&fingerprint)
            {
                name.answered(&found);
            }
        }
    }

    /// Follows the names until the future is dropped: repeats the lookups, removes addresses that cannot be reached,
    /// and restores them when they can. Calls `changed` with the name of each upstream whose servers changed.
    pub(crate) async fn follow_names(self: Arc<Self>, changed: impl Fn(String) + Clone + Send + 'static) {
        let (mut looked_up, mut tried) = (Instant::now(), Instant::now());
        loop {
            // Wakes at once when a connection failed.
            let _ = timeout(ASK_AGAIN, self.unreached.notified()).await;
            let due = |last: &mut Instant, every| {
                let is_due = last.elapsed() >= every;
                if is_due {
                    *last = Instant::now();
                }
                is_due
            };
            let (look_up, try_lost) = (due(&mut looked_up, LOOK_UP_EVERY), due(&mut tried, ASK_AGAIN));
            for name in self.other_servers(look_up, try_lost).await {
                let changed = changed.clone();
                // The callee reports its own outcome.
                let _ = tokio::task::spawn_blocking(move || changed(name)).await;
            }
        }
    }

    /// Updates the addresses of all names. Returns the upstreams whose servers now differ from those that calls are
    /// sent to.
    async fn other_servers(&self, look_up: bool, try_lost: bool) -> Vec<String> {
        for site in self.sites() {
            if let (Some(ip), true) = (site.upstream.spec().ip, site.upstream.figures().down.is_some())
                && let Some(name) = self.state().names.0.get_mut(&site.config.fingerprint)
            {
                name.addresses.unreached(ip);
            }
        }
        if look_up {
            let names = self.state().names.0.iter().map(|(key, name)| (*key, name.spec.clone())).collect();
            self.look_up_all(names).await;
        }
        if try_lost {
            self.try_lost().await;
        }
        let sites = self.sites();
        let state = self.state();
        let differs = |(fingerprint, name): &(&[u8; 32], &TrackedName)| {
            let own = sites.iter().filter(|site| site.config.fingerprint == **fingerprint);
            let mut now: Vec<Option<IpAddr>> = own.map(|site| site.upstream.spec().ip).collect();
            now.sort_unstable();
            now != name.servers()
        };
        state.names.0.iter().filter(differs).map(|(_, name)| name.spec.name.clone()).collect()
    }

    /// Probes the addresses that were removed because they could not be reached. An address that answers is restored.
    async fn try_lost(&self) {
        let sites = self.sites();
        // If no address can be reached, calls still use all of them. Such a server is probed through its own object, so
        // that its figures are updated.
        let server = |fingerprint: &[u8; 32], name: &TrackedName, ip: IpAddr| {
            let same = |site: &&UpstreamSite| {
                site.config.fingerprint == *fingerprint && site.upstream.spec().ip == Some(ip)
            };
            let known = sites.iter().find(same).map(|site| site.upstream.clone());
            known.or_else(|| Upstream::new(name.spec.at(ip)).ok())
        };
        let lost = |(fingerprint, name): (&[u8; 32], &TrackedName)| {
            let lost = name.addresses.lost().into_iter();
            lost.filter_map(|ip| Some((*fingerprint, ip, server(fingerprint, name, ip)?))).collect::<Vec<_>>()
        };
        let lost: Vec<_> = self.state().names.0.iter().flat_map(lost).collect();
        // Probes all of them at once.
        let tries = lost.into_iter().map(|(key, ip, upstream)| (key, ip, tokio::spawn(is_reached(upstream))));
        for (fingerprint, ip, tried) in tries.collect::<Vec<_>>() {
            if tried.await.unwrap_or(false)
                && let Some(name) = self.state().names.0.get_mut(&fingerprint)
            {
                name.addresses.reached(ip);
            }
        }
    }

    /// The servers of a configuration. A server with unchanged settings keeps its state and its last answer; others are
    /// new.
    ///
    /// # Errors
    /// Returns every reason why a server cannot be built.
    pub fn sites_of(&self, config: &ServerSettings) -> Result<Vec<UpstreamSite>, Vec<String>> {
        let known = self.sites();
        let (mut sites, mut faults) = (Vec::new(), Vec::new());
        for wanted in &config.upstreams {
            let servers =
                self.state().names.0.get(&wanted.fingerprint).map_or(vec![None], TrackedName::servers);
            let own = known.iter().filter(|site| site.config.fingerprint == wanted.fingerprint);
            let own: Vec<&UpstreamSite> = own.collect();
            for ip in servers {
                if let Some(site) = own.iter().find(|site| site.upstream.spec().ip == ip) {
                    sites.push(UpstreamSite { config: wanted.clone(), ..(*site).clone() });
                    continue;
                }
                let spec = ip.map_or_else(|| wanted.spec.clone(), |ip| wanted.spec.at(ip));
                match Upstream::new(spec) {
                    Ok(upstream) => {
                        // If an operator drained all servers of the upstream, a new server starts drained as well.
                        if !own.is_empty() && own.iter().all(|site| !site.upstream.health().is_up()) {
                            upstream.drain();
                        }
                        let seen = Arc::new(headrace_fleet::WorkerSite::new(&upstream.label()));
                        let by = AskContext { clock: Arc::clone(&self.clock), cache: self.cache.clone() };
                        let (config, listed, theirs) =
                            (wanted.clone(), ListedModels::NotAsked, Arc::default());
                        sites.push(UpstreamSite { config, upstream, listed, theirs, by, seen });
                    }
                    Err(why) => {
                        faults.extend(why.into_iter().map(|why| format!("{}: {why}", wanted.setting)))
                    }
                }
            }
        }
        if faults.is_empty() { Ok(sites) } else { Err(faults) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::Mutex;

    use headrace_domain::SystemClock;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::upstreams::asked;
    use crate::upstreams::names::Resolver;
    use headrace_config::layers::SettingLayers;

    const LIST: &str = r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#;

    /// A server that lists a model, and records the `host` of each request.
    struct ListingServer {
        at: SocketAddr,
        hosts: Arc<Mutex<Vec<String>>>,
        serving: JoinHandle<()>,
    }

    impl ListingServer {
        async fn start(at: SocketAddr) -> Self {
            let listener = TcpListener::bind(at).await.unwrap();
            let (at, hosts) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
            let seen = Arc::clone(&hosts);
            let serving = tokio::spawn(async move {
                while let Ok((mut stream, _)) = listener.accept().await {
                    let mut bytes = vec![0; 8192];
                    let read = stream.read(&mut bytes).await.unwrap_or(0);
                    let text = String::from_utf8_lossy(&bytes[..read]).to_ascii_lowercase();
                    seen.lock().unwrap().extend(
                        text.lines().filter_map(|line| line.strip_prefix("host: ")).map(str::to_owned),
                    );
                    let answer = format!(
                        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{LIST}",
                        LIST.len()
                    );
                    let _ = stream.write_all(answer.as_bytes()).await;
                }
            });
            Self { at, hosts, serving }
        }

        async fn stop(self) -> SocketAddr {
            self.serving.abort();
            let _ = self.serving.await;
            self.at
        }
    }

    /// Two servers at two addresses and one port, and the answer of the scripted DNS.
    struct TwoAddresses {
        upstreams: UpstreamRegistry,
        config: ServerSettings,
        dns: Arc<Mutex<Vec<IpAddr>>>,
    }

    impl TwoAddresses {
        fn new(port: u16, kind: &str, proxy: &str) -> Self {
            let dns = Arc::new(Mutex::new(vec![ip(1), ip(2)]));
            let answers = Arc::clone(&dns);
            let resolver: Resolver = Arc::new(move |name, asked_port| {
                assert_eq!((name.as_str(), asked_port), ("twins.test", port));
                let found = answers.lock().unwrap().clone();
                Box::pin(async move { Ok(found) })
            });
            let text = format!(
                "[[upstreams]]\nname = \"twins\"\nkind = \"{kind}\"\nurl = \"http://twins.test:{port}\"\n{proxy}\n"
            );
            let mut settings = SettingLayers::defaults();
            settings.file(Path::new("h.toml"), &text);
            let config =
                ServerSettings::from_settings(settings, true).unwrap_or_else(|error| panic!("{error}"));
            let upstreams =
                UpstreamRegistry { resolver, ..UpstreamRegistry::new(Arc::new(SystemClock::new()), None) };
            Self { upstreams, config, dns }
        }

        /// Installs the servers of the configuration, as a reload does. Returns their labels.
        async fn take_over(&self) -> Vec<String> {
            self.upstreams.look_up(&self.config).await;
            let sites = self.upstreams.sites_of(&self.config).unwrap();
            self.upstreams.state().sites.clone_from(&sites);
            sites.iter().map(|site| site.upstream.label()).collect()
        }

        fn site(&self, label: &str) -> UpstreamSite {
            self.upstreams.sites().into_iter().find(|site| site.upstream.label() == label).unwrap()
        }
    }

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    /// The first server takes any free port, the second one the same port of another address.
    async fn two_servers() -> (ListingServer, ListingServer) {
        loop {
            let one = ListingServer::start(SocketAddr::new(ip(1), 0)).await;
            let at = SocketAddr::new(ip(2), one.at.port());
            if TcpListener::bind(at).await.is_ok() {
                return (one, ListingServer::start(at).await);
            }
        }
    }

    #[tokio::test]
    async fn each_address_of_a_name_is_a_server_of_its_own_that_leaves_and_comes_back() {
        let (one, two) = two_servers().await;
        let port = one.at.port();
        let twins = TwoAddresses::new(port, "openai", "");
        assert_eq!(twins.take_over().await, ["twins@127.0.0.1", "twins@127.0.0.2"]);
        let (first, second) = (twins.site("twins@127.0.0.1"), twins.site("twins@127.0.0.2"));
        assert!(!Arc::ptr_eq(&first.seen, &second.seen), "a breaker of its own");
        // Each server is asked at its own address, under the shared name.
        for site in asked(twins.upstreams.sites()).await {
            assert!(matches!(&site.listed, ListedModels::Models(models) if models.len() == 1));
            assert_eq!(site.upstream.figures().calls, 0);
        }
        for server in [&one, &two] {
            assert_eq!(*server.hosts.lock().unwrap(), [format!("twins.test:{port}")]);
        }
        assert_eq!(twins.upstreams.other_servers(true, true).await, [""; 0], "nothing has changed");

        // One failed connection removes an address. It returns when it can be reached, not when the DNS names it.
        let at = two.stop().await;
        assert!(second.upstream.probe().await.is_err());
        assert_eq!(twins.upstreams.other_servers(true, false).await, ["twins"]);
        assert_eq!(twins.take_over().await, ["twins@127.0.0.1"]);
        assert!(
            Arc::ptr_eq(&twins.site("twins@127.0.0.1").seen, &first.seen),
            "the other one stays the same"
        );
        assert_eq!(twins.upstreams.other_servers(true, true).await, [""; 0], "it is still gone");
        let two = ListingServer::start(at).await;
        assert_eq!(twins.upstreams.other_servers(false, true).await, ["twins"]);
        assert_eq!(twins.take_over().await, ["twins@127.0.0.1", "twins@127.0.0.2"]);

        // Three DNS answers without the address.
        *twins.dns.lock().unwrap() = vec![ip(1)];
        for changed in [&[][..], &[], &["twins"]] {
            assert_eq!(twins.upstreams.other_servers(true, true).await, changed);
        }
        assert_eq!(twins.take_over().await, ["twins@127.0.0.1"]);

        // If no address can be reached, all addresses that the DNS names are tried.
        *twins.dns.lock().unwrap() = vec![ip(1), ip(2)];
        assert_eq!(twins.upstreams.other_servers(true, true).await, ["twins"]);
        assert_eq!(twins.take_over().await.len(), 2);
        let (at_one, _) = (one.stop().await, two.stop().await);
        for site in twins.upstreams.sites() {
            assert!(site.upstream.probe().await.is_err());
        }
        assert_eq!(twins.upstreams.other_servers(true, true).await, [""; 0]);
        let _one = ListingServer::start(at_one).await;
        assert_eq!(twins.upstreams.other_servers(false, true).await, ["twins"]);
        assert_eq!(twins.take_over().await, ["twins@127.0.0.1"]);
        assert_eq!(twins.upstreams.other_servers(true, true).await, [""; 0], "it stays");
    }

    #[tokio::test]
    async fn a_new_server_of_a_drained_upstream_is_drained() {
        let (one, _two) = two_servers().await;
        let twins = TwoAddresses::new(one.at.port(), "vllm", "");
        assert_eq!(twins.take_over().await.len(), 2);
        twins.upstreams.sites().iter().for_each(|site| site.upstream.drain());
        twins.dns.lock().unwrap().push(ip(3));
        assert_eq!(twins.upstreams.other_servers(true, false).await, ["twins"]);
        assert_eq!(twins.take_over().await.len(), 3);
        assert!(twins.upstreams.sites().iter().all(|site| !site.upstream.health().is_up()));
    }

    #[tokio::test]
    async fn a_name_with_one_address_a_proxy_or_a_provider_behind_it_is_one_server() {
        let one_address = TwoAddresses::new(9, "vllm", "");
        *one_address.dns.lock().unwrap() = vec![ip(1), "::1".parse().unwrap()];
        assert_eq!(one_address.take_over().await, ["twins"]);
        let proxied = TwoAddresses::new(9, "vllm", "proxy = \"http://127.0.0.1:3128\"");
        assert_eq!(proxied.take_over().await, ["twins"]);
        for (kind, servers) in [("openai", 1), ("vllm", 2)] {
            let public = TwoAddresses::new(9, kind, "");
            *public.dns.lock().unwrap() = vec!["9.9.9.9".parse().unwrap(), "9.9.9.10".parse().unwrap()];
            assert_eq!(public.take_over().await.len(), servers, "{kind}");
        }
    }
}
