//! Stage `route`: the name asked for to the model that serves.

use headrace_domain::Stage;

use crate::Gateway;
use crate::authorize::unknown_model;
use crate::refused::Refused;
use crate::state::{Authorized, Routed};

impl Authorized {
    pub(crate) fn route(mut self, gateway: &Gateway) -> Result<Routed, Refused> {
        let Some(model) = gateway.resolve(&self.asked) else {
            return Err(self.dossier.refuse(unknown_model(self.asked.as_str())));
        };
        let record = &mut self.dossier.record;
        // Only now: a name that is none may be anything, a secret pasted in the wrong place too.
        record.model_asked = Some(self.asked.to_string());
        record.model_served = Some(model.name.to_string());
        record.numerics = Some(model.capabilities.numerics.clone());
        self.dossier.mark(Stage::Route);
        let Self { dossier, principal, call, taken, .. } = self;
        Ok(Routed { dossier, principal, call, taken, model })
    }
}
