//! Names of upstreams, and which of their addresses count as separate servers. Must not know the servers.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use headrace_upstream::{NameAddresses, UpstreamSpec};

type Found = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send>>;

/// Looks up a name with its port.
pub(crate) type Resolver = Arc<dyn Fn(String, u16) -> Found + Send + Sync>;

/// The resolver of this machine's configuration.
pub(crate) fn resolver() -> Resolver {
    Arc::new(|name, port| {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, port)).await?;
            Ok(found.map(|address: SocketAddr| address.ip()).collect())
        })
    })
}

/// Upstream names with the addresses found for them, by the fingerprint of the upstream's configuration.
#[derive(Default)]
pub(super) struct NameTable(pub(super) BTreeMap<[u8; 32], TrackedName>);

/// One name and its addresses.
pub(super) struct TrackedName {
    pub(super) spec: UpstreamSpec,
    pub(super) addresses: NameAddresses,
    /// Set once the name had several addresses that are separate servers. It stays set.
    is_several: bool,
}

impl TrackedName {
    /// A name that has not been looked up.
    pub(super) fn new(spec: UpstreamSpec) -> Self {
        Self { spec, addresses: NameAddresses::default(), is_several: false }
    }

    /// The addresses that are separate servers. A single `None` means the name itself, which is looked up for each
    /// connection.
    pub(super) fn servers(&self) -> Vec<Option<IpAddr>> {
        if self.is_several { self.addresses.used().into_iter().map(Some).collect() } else { vec![None] }
    }

    /// Records a DNS answer.
    pub(super) fn answered(&mut self, found: &[IpAddr]) {
        self.addresses.answered(found);
        let used = self.addresses.used();
        self.is_several |= used.len() > 1 && self.spec.has_servers_at(&used);
    }
}
