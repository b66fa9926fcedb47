//! Stage `route`: the name asked for to the model that serves. Which one that is was settled when the body was read; only who may
//! use the name learns of it.

use headrace_domain::Stage;

use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::{Authorized, Routed};

use super::authorize::unknown_model;

impl Authorized {
    pub(crate) fn route(self, dossier: &mut Dossier) -> Result<Routed, Why> {
        let Self { principal, call, taken, catalog, asked, model } = self;
        let model = model.ok_or_else(|| unknown_model(asked.as_str()))?;
        // Only now: a name that is none may be anything, a secret pasted in the wrong place too.
        dossier.record.model_asked = Some(asked.to_string());
        dossier.served_by(&model);
        dossier.mark(Stage::Route);
        Ok(Routed { principal, call, taken, catalog, model })
    }
}
