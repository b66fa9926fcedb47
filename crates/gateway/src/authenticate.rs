//! Stage `authenticate`: credential to principal, and the door: a place among the caller's limits, and a look at whether it
//! could pay.

use std::time::Duration;

use headrace_domain::{RequestId, Stage};
use headrace_identity::{AuthRefusal, Principal, credential};
use headrace_ledger::LedgerRefusal;
use headrace_limits::Lease;
use headrace_wire::ErrorKind;

use crate::Gateway;
use crate::refused::{Refused, Why};
use crate::state::{Admitted, Arrived, Authenticated, Caller, caller_scopes};

impl<B> Arrived<B> {
    /// The caller, by one keyed hash and one look-up; every bad key costs the same and is answered alike.
    pub(crate) fn authenticate(mut self, gateway: &Gateway) -> Result<Authenticated<B>, Refused> {
        if gateway.is_draining() {
            return Err(self.dossier.refuse(draining()));
        }
        let shown =
            credential(self.credentials.authorization.as_deref(), self.credentials.x_api_key.as_deref());
        let now = gateway.parts().clock.now();
        match shown.and_then(|key| gateway.parts().directory.authenticate(key, now)) {
            Ok(principal) => {
                let record = &mut self.dossier.record;
                record.org = Some(principal.org.clone());
                record.project = Some(principal.project.clone());
                record.key = Some(principal.key.clone());
                let Self { dossier, endpoint, body, .. } = self;
                Ok(Authenticated { dossier, principal, endpoint, body })
            }
            Err(refusal) => Err(self.dossier.refuse(unauthenticated(&refusal))),
        }
    }
}

impl<B> Authenticated<B> {
    /// The door: takes a request and a place in flight from the caller's limits, and turns away whom no balance could let
    /// through. How many tokens and how much money a call needs is not known yet: `hold` takes those.
    pub(crate) fn admit(mut self, gateway: &Gateway) -> Result<Admitted<B>, Refused> {
        let admitted = admit(gateway, &self.principal, self.dossier.id);
        self.dossier.mark(Stage::Authenticate);
        let Self { dossier, principal, endpoint, body } = self;
        match admitted {
            Ok(lease) => Ok(Admitted { dossier, principal: Caller { principal, lease }, endpoint, body }),
            Err(why) => Err(dossier.refuse(*why)),
        }
    }
}

fn admit(gateway: &Gateway, principal: &Principal, id: RequestId) -> Result<Lease, Box<Why>> {
    let parts = gateway.parts();
    let (scopes, now) = (caller_scopes(principal), parts.clock.now());
    let lease = parts
        .limits
        .enter(&scopes, id, now)
        .map_err(|refusal| Box::new(Why::limited(refusal, &parts.limits.standing(&scopes, now))))?;
    could_pay(gateway, principal).map(|()| lease)
}

fn could_pay(gateway: &Gateway, principal: &Principal) -> Result<(), Box<Why>> {
    let parts = gateway.parts();
    if gateway.has_free_model() {
        return Ok(());
    }
    let Some(standing) = parts.ledger.standing(&principal.org, &principal.project) else {
        let unknown = LedgerRefusal::UnknownProject { project: principal.project.clone() };
        return Err(Box::new(unknown.into()));
    };
    if standing.available.get() > 0 {
        return Ok(());
    }
    Err(Box::new(Why::nothing_to_spend(standing.balance, standing.held)))
}

pub(crate) fn unauthenticated(refusal: &AuthRefusal) -> Why {
    let code = match refusal {
        AuthRefusal::Missing => "missing_api_key",
        AuthRefusal::Conflicting => "conflicting_credentials",
        AuthRefusal::Expired => "expired_api_key",
        _ => "invalid_api_key",
    };
    let why = Why::new(Stage::Authenticate, 401, ErrorKind::Authentication, code, refusal.to_string());
    Why { rule: Some(refusal.rule()), ..why }
}

pub(crate) fn draining() -> Why {
    Why::new(
        Stage::Connect,
        503,
        ErrorKind::Overloaded,
        "shutting_down",
        "The server is shutting down and takes no new calls. Try again on another instance or in a moment.",
    )
    .retry_after(Duration::from_secs(2))
}
