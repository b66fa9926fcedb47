//! The gateways that share the stores with this one: registers its address, and reads those of the others. Must not know
//! what gateways ask each other.

use std::sync::Arc;
use std::time::Duration;

use headrace_admin_http::{GatewayPeer, GatewayPeers, PeerAccess};
use headrace_domain::Clock;
use headrace_ledger::LedgerAdmin;
use headrace_store::{PostgresAddresses, Storage};

/// Interval at which the address is registered again if this gateway has another owner, or its registration failed.
const REGISTER: Duration = Duration::from_secs(1);

/// The gateways of a database.
pub(crate) struct SharedGateways {
    addresses: PostgresAddresses,
    ledger: Arc<dyn LedgerAdmin>,
    own: GatewayPeer,
}

impl SharedGateways {
    /// Returns the gateways that share `storage`. `None` if this server has its stores for itself.
    pub(crate) fn open(
        storage: &Storage,
        ledger: &Arc<dyn LedgerAdmin>,
        own: GatewayPeer,
    ) -> Option<Arc<Self>> {
        let addresses = storage.gateway_addresses()?;
        Some(Arc::new(Self { addresses, ledger: Arc::clone(ledger), own }))
    }

    /// Returns the access to the other gateways.
    ///
    /// # Errors
    /// Returns why there is no HTTP client.
    pub(crate) fn access(
        self: &Arc<Self>,
        secret: &[u8; 32],
        clock: &Arc<dyn Clock>,
    ) -> Result<PeerAccess, String> {
        PeerAccess::new(Arc::clone(self) as _, secret, Arc::clone(clock))
    }

    /// Keeps the address of this gateway registered, under the owner that it has.
    pub(crate) async fn register(self: Arc<Self>) {
        let Some(address) = self.own.address.clone() else { return };
        let mut registered = None;
        loop {
            let owner = self.ledger.owner();
            if let Some(owner) = owner.filter(|owner| Some(*owner) != registered) {
                let (this, address) = (Arc::clone(&self), address.clone());
                let put = tokio::task::spawn_blocking(move || this.addresses.put(owner, &address)).await;
                match put {
                    Ok(Ok(())) => registered = Some(owner),
                    Ok(Err(error)) => {
                        tracing::debug!("the address of this gateway is not registered: {error}")
                    }
                    Err(_) => return,
                }
            }
            tokio::time::sleep(REGISTER).await;
        }
    }
}

impl GatewayPeers for SharedGateways {
    fn own(&self) -> GatewayPeer {
        self.own.clone()
    }

    fn others(&self) -> Result<Vec<GatewayPeer>, String> {
        let live = self.addresses.live().map_err(|error| error.to_string())?;
        let own = self.ledger.owner();
        let others = live.into_iter().filter(|gateway| Some(gateway.owner) != own);
        Ok(others.map(|gateway| GatewayPeer { name: gateway.name, address: gateway.address }).collect())
    }

    fn ended(&self) -> Result<Vec<String>, String> {
        let mut ended = self.addresses.ended().map_err(|error| error.to_string())?;
        ended.retain(|name| *name != self.own.name);
        Ok(ended)
    }
}
