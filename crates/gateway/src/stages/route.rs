//! Stage `route`: the name asked for to the model that serves.

use std::sync::Arc;

use headrace_domain::Stage;

use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::{Authorized, Routed};

use super::authorize::unknown_model;

impl Authorized {
    pub(crate) fn route(self, dossier: &mut Dossier) -> Result<Routed, Why> {
        let model = self.catalog.resolve(&self.asked).ok_or_else(|| unknown_model(self.asked.as_str()))?;
        let model = Arc::clone(model);
        let record = &mut dossier.record;
        // Only now: a name that is none may be anything, a secret pasted in the wrong place too.
        record.model_asked = Some(self.asked.to_string());
        record.model_served = Some(model.name.to_string());
        record.numerics = Some(model.lane.numerics()).filter(|known| !known.is_empty()).map(str::to_owned);
        dossier.mark(Stage::Route);
        let Self { principal, call, taken, catalog, .. } = self;
        Ok(Routed { principal, call, taken, catalog, model })
    }
}
