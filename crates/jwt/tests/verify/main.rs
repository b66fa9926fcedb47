//! Tables of good and bad tokens, rotation of keys, and a provider that is away.

#![expect(clippy::unwrap_used, reason = "tests fail by panicking")]

mod bad_tokens;
mod certificates;
mod first_sight;
mod keys;
mod provider;
mod rules;
mod sign_in;

use std::sync::Arc;

use headrace_domain::Clock as _;
use headrace_identity::Principal;
use headrace_jwt::TokenRefusal;

use crate::provider::World;

impl World {
    /// Authenticates a token as the gateway does: first the wait for keys, then the decision.
    pub(crate) async fn sign_in(&self, token: &str) -> Result<Arc<Principal>, TokenRefusal> {
        if let Some(wait) = self.tokens.wait_for_keys(token, self.clock.now()) {
            wait.await;
        }
        self.tokens.authenticate(token, self.clock.now())
    }
}
