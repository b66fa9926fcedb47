//! Asks the other gateways to remove a user from their own stores. Must not know what they remove.

use std::time::Duration;

use futures_util::future::join_all;
use headrace_admin::ForgottenStore;
use headrace_domain::ProjectId;
use serde::Deserialize;
use serde_json::json;

use super::PeerAccess;

/// The path of the request.
pub(crate) const FORGET: &str = "/gateway/v1/forget";
/// How long the gateways may take. They write their files anew.
const PATIENCE: Duration = Duration::from_secs(600);
/// Why a gateway was not asked.
const NOT_LIVE: &str =
    "it is not running: start it and try again, or run `headrace forget` on its data directory";

/// The answer of a gateway.
#[derive(Deserialize)]
struct ForgetAnswer {
    stores: Vec<ForgottenStore>,
}

impl PeerAccess {
    /// Asks the other live gateways, and returns what each did, with the gateways that did not answer and those that are
    /// not live. Waits on this thread, which must not drive a Tokio runtime.
    pub fn forget(&self, user: &str, project: Option<&ProjectId>) -> Vec<ForgottenStore> {
        let silent = |gateway: &str, why: String| ForgottenStore {
            store: format!("gateway {gateway}"),
            records: 0,
            failed: Some(why),
        };
        let others = match self.peers().others() {
            Ok(others) => others,
            Err(why) => return vec![silent("(all others)", why)],
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else {
            return vec![silent("(all others)", "there is no runtime to ask them".to_owned())];
        };
        let body = json!({ "user": user, "project": project });
        let body = &body;
        let asked = others.iter().map(|peer| self.ask_within(peer, FORGET, body, PATIENCE));
        let answers = runtime.block_on(join_all(asked));
        let mut all: Vec<ForgottenStore> = match self.peers().ended() {
            Ok(ended) => ended.iter().map(|name| silent(name, NOT_LIVE.to_owned())).collect(),
            Err(why) => vec![silent("(those that are not live)", why)],
        };
        for (peer, answer) in others.iter().zip(answers) {
            let read =
                answer.and_then(|answer| serde_json::from_value(answer).map_err(|error| error.to_string()));
            match read {
                Ok(ForgetAnswer { stores }) => all.extend(stores.into_iter().map(|store| ForgottenStore {
                    store: format!("{} of gateway {}", store.store, peer.name),
                    ..store
                })),
                Err(why) => all.push(silent(&peer.name, why)),
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use headrace_domain::{ManualClock, UnixNanos};

    use super::*;
    use crate::peers::{GatewayPeer, GatewayPeers};

    /// A live gateway that cannot be asked, and one that is not live.
    struct TwoGateways;

    impl GatewayPeers for TwoGateways {
        fn own(&self) -> GatewayPeer {
            GatewayPeer { name: "a".to_owned(), address: None }
        }
        fn others(&self) -> Result<Vec<GatewayPeer>, String> {
            Ok(vec![GatewayPeer { name: "b".to_owned(), address: None }])
        }
        fn ended(&self) -> Result<Vec<String>, String> {
            Ok(vec!["c".to_owned()])
        }
    }

    #[test]
    fn each_gateway_that_was_not_asked_is_named_as_failed() {
        let clock = Arc::new(ManualClock::at(UnixNanos::new(1)));
        let access = PeerAccess::new(Arc::new(TwoGateways), &[7; 32], clock).unwrap();
        let done = access.forget("eva@example.com", None);
        let failed: Vec<&str> =
            done.iter().filter(|store| store.failed.is_some()).map(|store| store.store.as_str()).collect();
        assert_eq!(failed, ["gateway c", "gateway b"], "{done:?}");
    }
}
