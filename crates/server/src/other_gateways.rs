//! Calls of other gateways, for commands on the machine of one gateway, which may run or not. Must not know how a call is
//! shown.

use std::path::Path;
use std::sync::Arc;

pub use headrace_admin_http::{FleetSearch, OwnGateway, PeerUsage};
use headrace_admin_http::{GatewayPeer, GatewayPeers, PeerAccess};
use headrace_domain::{SystemClock, TraceRecord};
use headrace_store::PostgresAddresses;
use headrace_trace::decode_record;
use serde_json::Value;

use crate::datadir::{self, DataDirError, SecretFiles};

/// The result of a search at the other gateways.
#[derive(Debug, Default)]
pub struct GatewaySearch {
    /// The record of the call, and the name of its gateway.
    pub found: Option<(TraceRecord, String)>,
    /// The gateways that did not answer, and why.
    pub silent: Option<String>,
}

/// The gateways of a database, for a command on a machine whose own gateway may not run.
struct AllGateways {
    addresses: PostgresAddresses,
    /// The name of the machine's own gateway. Empty if it does not matter.
    own: String,
}

impl GatewayPeers for AllGateways {
    fn own(&self) -> GatewayPeer {
        GatewayPeer { name: self.own.clone(), address: None }
    }

    fn others(&self) -> Result<Vec<GatewayPeer>, String> {
        let live = self.addresses.live().map_err(|error| error.to_string())?;
        Ok(live
            .into_iter()
            .map(|gateway| GatewayPeer { name: gateway.name, address: gateway.address })
            .collect())
    }

    fn ended(&self) -> Result<Vec<String>, String> {
        let mut ended = self.addresses.ended().map_err(|error| error.to_string())?;
        ended.retain(|name| *name != self.own);
        Ok(ended)
    }
}

/// The access to the gateways that share the stores of a data directory. `None` if the directory has its stores for
/// itself.
///
/// # Errors
/// Returns an error if the shared secrets cannot be read. The inner result says why there is no HTTP client.
pub(crate) fn access(
    dir: &Path,
    files: &SecretFiles<'_>,
    own: &str,
) -> Result<Option<Result<PeerAccess, String>>, DataDirError> {
    let Some((addresses, secret)) = datadir::gateway_access(dir, files)? else { return Ok(None) };
    let gateways = Arc::new(AllGateways { addresses, own: own.to_owned() });
    Ok(Some(PeerAccess::new(gateways, &secret, Arc::new(SystemClock::new()))))
}

/// Asks the live gateways that share the stores of a data directory for a call, by its id or that of its answer. Finds
/// nothing if the directory has its stores for itself. Takes a few seconds at most.
///
/// # Errors
/// Returns an error if the shared secrets cannot be read.
pub fn find_call(dir: &Path, files: &SecretFiles<'_>, id: &str) -> Result<GatewaySearch, DataDirError> {
    let Some(access) = access(dir, files, "")? else { return Ok(GatewaySearch::default()) };
    let answers = match access.and_then(|access| access.find_record(id)) {
        Ok(answers) => answers,
        Err(why) => return Ok(GatewaySearch { found: None, silent: Some(why) }),
    };
    let mut silent = answers.silent();
    let found = answers.found.and_then(|(found, gateway)| match decode_record(&found.view.to_string()) {
        Ok(record) => Some((record, gateway)),
        Err(error) => {
            silent = Some(format!("{gateway}: {error}"));
            None
        }
    });
    Ok(GatewaySearch { found, silent })
}

/// The access to all live gateways that share the stores of a data directory. `None` if the directory has its stores for
/// itself.
///
/// # Errors
/// Returns an error if the shared secrets cannot be read.
pub fn fleet(dir: &Path, files: &SecretFiles<'_>) -> Result<Option<FleetReader>, DataDirError> {
    Ok(access(dir, files, "")?.map(FleetReader))
}

/// Reads calls of all live gateways.
#[allow(missing_debug_implementations, reason = "holds a client and a secret")]
pub struct FleetReader(Result<PeerAccess, String>);

impl FleetReader {
    /// Searches calls. See [`PeerAccess::search_all`].
    ///
    /// # Errors
    /// Returns why there is no page.
    pub fn search(&self, search: &FleetSearch, own: OwnGateway<'_>) -> Result<Value, String> {
        self.0.as_ref().map_err(Clone::clone)?.search_all(search, own)
    }

    /// Returns the usage of the other gateways. See [`PeerAccess::usage_elsewhere`].
    ///
    /// # Errors
    /// Returns why no gateway can be asked.
    pub fn usage(&self, named: &[(&'static str, String)], own: Option<&str>) -> Result<PeerUsage, String> {
        self.0.as_ref().map_err(Clone::clone)?.usage_elsewhere(named, own)
    }

    /// Returns the records of calls, by their ids and the names of their gateways, as far as these answer.
    ///
    /// # Errors
    /// Returns why no gateway can be asked.
    pub fn records(&self, calls: &[(String, String)]) -> Result<Vec<Option<TraceRecord>>, String> {
        let found = self.0.as_ref().map_err(Clone::clone)?.records(calls)?;
        let decode = |record: Value| decode_record(&record.to_string()).ok();
        Ok(found.into_iter().map(|record| record.and_then(decode)).collect())
    }
}
