//! The search for one call at the other gateways. Must not know who asks.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::merge::MissingGateway;
use super::{GatewayPeer, PeerAccess};
use crate::seams::{CallView, FoundCall};

/// The path of a question for one call.
pub(crate) const CALL: &str = "/gateway/v1/call";

/// The answers of the other gateways about one call.
#[derive(Debug, Default)]
pub struct PeerAnswers {
    /// The call, and the name of its gateway. `None` if no gateway that answered knows it.
    pub found: Option<(FoundCall, String)>,
    /// The gateways that did not answer.
    pub(crate) missing: Vec<MissingGateway>,
}

impl PeerAnswers {
    /// Describes the gateways that did not answer. `None` if all of them answered.
    pub fn silent(&self) -> Option<String> {
        let silent: Vec<String> =
            self.missing.iter().map(|MissingGateway { gateway, why }| format!("{gateway}: {why}")).collect();
        (!silent.is_empty()).then(|| silent.join("; "))
    }
}

impl PeerAccess {
    /// Asks `others` for a view of a call, by the call's id or that of its answer. Takes two seconds at most.
    pub(crate) async fn find(&self, others: Vec<GatewayPeer>, id: &str, view: CallView) -> PeerAnswers {
        let body = json!({ "id": id, "view": view.name() });
        let body = &body;
        let asked =
            others.into_iter().map(|peer| async move { (self.ask(&peer, CALL, body).await, peer.name) });
        let mut answers = PeerAnswers::default();
        for (answer, gateway) in join_all(asked).await {
            match answer.and_then(found_in) {
                Ok(None) => {}
                Ok(Some(found)) => answers.found = Some((found, gateway)),
                Err(why) => answers.missing.push(MissingGateway { gateway, why }),
            }
        }
        answers
    }

    /// Asks the other live gateways for the record of a call. Waits for them on this thread, which must not run a Tokio
    /// runtime.
    ///
    /// # Errors
    /// Returns why the gateways cannot be read, or there is no runtime.
    pub fn find_record(&self, id: &str) -> Result<PeerAnswers, String> {
        let others = self.peers.others()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        Ok(runtime.block_on(self.find(others, id, CallView::Record)))
    }
}

/// Reads the answer of a gateway. `None` if it does not know the call.
///
/// # Errors
/// Returns why the answer cannot be read.
pub(super) fn found_in(mut answer: Value) -> Result<Option<FoundCall>, String> {
    let found = answer.get_mut("found").map(Value::take).ok_or_else(|| "its answer is empty".to_owned())?;
    serde_json::from_value(found).map_err(|error| format!("its answer: {error}"))
}
