//! Names of upstreams, and which of their addresses are servers of their own. Must not know the servers.

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

/// By the configuration of this machine.
pub(crate) fn resolver() -> Resolver {
    Arc::new(|name, port| {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, port)).await?;
            Ok(found.map(|address: SocketAddr| address.ip()).collect())
        })
    })
}

/// The addresses of names that have, or had, several, by the fingerprint of their upstream's configuration.
#[derive(Default)]
pub(super) struct Names(pub(super) BTreeMap<[u8; 32], Name>);

/// One of them.
pub(super) struct Name {
    pub(super) spec: UpstreamSpec,
    pub(super) addresses: NameAddresses,
    /// It has had several addresses that are servers of their own, and keeps being followed so.
    is_several: bool,
}

impl Name {
    /// The name in a spec, which has not been looked up.
    pub(super) fn new(spec: UpstreamSpec) -> Self {
        Self { spec, addresses: NameAddresses::default(), is_several: false }
    }

    /// Which of the addresses are servers of their own. `None` alone stands for the name, which is looked up with each connection.
    pub(super) fn servers(&self) -> Vec<Option<IpAddr>> {
        if self.is_several { self.addresses.used().into_iter().map(Some).collect() } else { vec![None] }
    }

    /// Takes an answer of the DNS.
    pub(super) fn answered(&mut self, found: &[IpAddr]) {
        self.addresses.answered(found);
        let used = self.addresses.used();
        self.is_several |= used.len() > 1 && self.spec.has_servers_at(&used);
    }
}
