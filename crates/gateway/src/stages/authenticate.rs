//! Stage `authenticate`: from the credential to the principal, then the admission check: one place among the caller's
//! limits, and whether the caller has any funds.

use std::sync::Arc;

use headrace_call_state::{Rejection, unauthenticated};
use headrace_domain::{Stage, UnixNanos};
use headrace_identity::{AuthRefusal, Directory, KeyEnd, Principal};
use headrace_limits::Lease;

use crate::callers::{token_expired, user_inactive};
use crate::funds::could_pay;
use crate::refusal::draining;
use crate::request_context::RequestContext;
use crate::state::{AdmittedCaller, AdmittedRequest, ArrivedRequest, AuthenticatedRequest, caller_scopes};
use crate::{Gateway, features};

impl ArrivedRequest {
    /// Identifies the caller with one keyed hash and one look-up. Every invalid key costs the same and gets the same
    /// answer. A JWT is verified, or found among those that were. An in-process caller supplies the principal itself
    /// (`known`).
    pub(crate) fn authenticate(
        self,
        gateway: &Gateway,
        known: Option<Arc<Principal>>,
        context: &mut RequestContext,
    ) -> Result<AuthenticatedRequest, Rejection> {
        if gateway.is_draining() {
            return Err(draining());
        }
        let directory = &gateway.parts().directory;
        if let Some(principal) = known {
            return Ok(self.identified(gateway, (principal, directory.revocations()), context));
        }
        context.record.client = gateway.config().client_address.record(self.peer.address.ip());
        // Read before the look-up, so that a revocation after it is noticed.
        let revocations = directory.revocations();
        let principal = gateway.find_principal(&self.credentials, self.peer)?;
        Ok(self.identified(gateway, (principal, revocations), context))
    }

    fn identified(
        self,
        gateway: &Gateway,
        (principal, revocations): (Arc<Principal>, u64),
        context: &mut RequestContext,
    ) -> AuthenticatedRequest {
        context.is_of(&principal, gateway.records_of(principal.records));
        if let Some(slot) = &context.slot {
            slot.is_of(&principal.org, &principal.key);
        }
        AuthenticatedRequest { principal, revocations, endpoint: self.endpoint }
    }
}

impl AuthenticatedRequest {
    /// The admission check: takes one request and one in-flight place from the caller's limits, and rejects a caller
    /// without any funds. The call's tokens and cost are not known yet: stage `hold` takes those.
    pub(crate) fn admit(
        self,
        gateway: &Gateway,
        context: &mut RequestContext,
    ) -> Result<AdmittedRequest, Rejection> {
        let admitted = admit(gateway, &self.principal, context);
        context.end_stage(Stage::Authenticate);
        let lease = admitted?;
        let Self { principal, revocations, endpoint } = self;
        Ok(AdmittedRequest { principal: AdmittedCaller { principal, lease, revocations }, endpoint })
    }
}

impl AdmittedCaller {
    /// Checks that the key is still valid, because the body may have taken long to arrive.
    ///
    /// # Errors
    /// The key was revoked since the request arrived, or has expired.
    pub(crate) fn check_key(&self, directory: &Directory, now: UnixNanos) -> Result<(), Rejection> {
        let has_expired = self.principal.expires.is_some_and(|end| now >= end);
        if self.revocations == directory.revocations() && !has_expired {
            return Ok(());
        }
        match directory.key_end(&self.principal.key) {
            None if has_expired && self.principal.user.is_some() => Err(token_expired()),
            Some(KeyEnd::Revoked) => Err(unauthenticated(&AuthRefusal::Revoked)),
            Some(KeyEnd::Inactive) if self.principal.user.is_some() => Err(user_inactive()),
            Some(KeyEnd::Inactive) => Err(unauthenticated(&AuthRefusal::OwnerInactive)),
            _ if has_expired => Err(unauthenticated(&AuthRefusal::Expired)),
            _ => Ok(()),
        }
    }
}

fn admit(gateway: &Gateway, principal: &Principal, context: &RequestContext) -> Result<Lease, Rejection> {
    let parts = gateway.parts();
    let (scopes, now) = (caller_scopes(principal), parts.clock.now());
    // A shadow copy has bounds of its own, and counts against no limits.
    let counted = if context.copy().is_some() { &[][..] } else { &scopes };
    let lease = parts.limits.enter(counted, context.id, now).map_err(|refusal| {
        Rejection::limited(refusal, &parts.limits.standing(&scopes, now), context.dialect, now)
    })?;
    if context.copy().is_some() {
        return Ok(lease);
    }
    let funds = could_pay(gateway, principal);
    funds.or_else(|rejection| features::on_no_funds(gateway, principal, context, rejection)).map(|()| lease)
}
