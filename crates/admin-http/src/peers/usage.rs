//! Asks the other live gateways for their usage, to be added to the usage of this one. Must not know what usage has.

use futures_util::future::join_all;
use serde_json::{Map, Value};

use super::merge::MissingGateway;
use super::{GatewayPeer, PeerAccess};

/// The path of a question for usage. Only other gateways call it.
pub(crate) const USAGE: &str = "/gateway/v1/usage";

/// The usage of other gateways.
#[derive(Debug, Default)]
pub struct PeerUsage {
    /// What each gateway answered, by its name.
    pub answers: Vec<(String, Value)>,
    /// The names of the gateways that did not answer, and why.
    pub missing: Vec<(String, String)>,
}

impl PeerAccess {
    /// Asks `others` for their usage by these filters and groups. Takes two seconds at most.
    pub(crate) async fn usage_of(
        &self,
        others: Vec<GatewayPeer>,
        named: &[(&'static str, String)],
    ) -> PeerUsage {
        let body: Map<String, Value> =
            named.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect();
        let body = &Value::Object(body);
        let asked =
            others.into_iter().map(|peer| async move { (self.ask(&peer, USAGE, body).await, peer.name) });
        let mut usage = PeerUsage::default();
        for (answer, gateway) in join_all(asked).await {
            match answer {
                Ok(answer) => usage.answers.push((gateway, answer)),
                Err(why) => usage.missing.push((gateway, why)),
            }
        }
        usage
    }

    /// Asks all live gateways but `own` for their usage, for a program that reads the store of `own` itself. `None` for `own`
    /// if that gateway does not run. Waits for them on this thread, which must not run a Tokio runtime.
    ///
    /// # Errors
    /// Returns why the gateways cannot be read, or there is no runtime.
    pub fn usage_elsewhere(
        &self,
        named: &[(&'static str, String)],
        own: Option<&str>,
    ) -> Result<PeerUsage, String> {
        let mut others = self.peers().others()?;
        let has_own_name = |peer: &GatewayPeer| Some(peer.name.as_str()) == own;
        let same = others.iter().filter(|peer| has_own_name(peer)).count();
        // Usage that counts twice is worse than usage that is missing.
        others.retain(|peer| !has_own_name(peer));
        let mut usage = self.wait_for(self.usage_of(others, named))?.unwrap_or_default();
        if let (2.., Some(own)) = (same, own) {
            let why =
                format!("{same} gateways have this name, and one of them is this one: set gateway.name");
            usage.missing.push((own.to_owned(), why));
        }
        Ok(usage)
    }
}

/// Adds the gateways that are missing to an answer, as a search does.
pub(crate) fn add_missing(usage: &mut Value, missing: Vec<MissingGateway>) {
    if let Value::Object(fields) = usage {
        fields.insert("missing_gateways".to_owned(), serde_json::json!(missing));
    }
}
