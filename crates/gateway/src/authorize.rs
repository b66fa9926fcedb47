//! Stage `authorize`: may this key use this endpoint, and the model by the name that it asked for.

use headrace_domain::{ModelName, Stage};
use headrace_identity::{EntitlementRefusal, may_use};
use headrace_wire::ErrorKind;

use crate::refused::{Refused, Why};
use crate::state::{Authorized, Parsed};

impl Parsed {
    pub(crate) fn authorize(mut self) -> Result<Authorized, Refused> {
        let Ok(asked) = ModelName::new(&self.call.model) else {
            return Err(self.dossier.refuse(unknown_model(&self.call.model)));
        };
        if let Err(refusal) = may_use(&self.principal, &self.call.model, self.call.endpoint) {
            let why = match refusal {
                EntitlementRefusal::Endpoint(_) => Why::new(
                    Stage::Authorize,
                    403,
                    ErrorKind::Permission,
                    "endpoint_not_entitled",
                    format!("{refusal} Ask for a key that may, or use another endpoint."),
                ),
                // Told apart from a model that does not exist, it would tell which models do.
                EntitlementRefusal::Model => unknown_model(&self.call.model),
            };
            return Err(self.dossier.refuse(why));
        }
        self.dossier.mark(Stage::Authorize);
        let Self { dossier, principal, call, taken } = self;
        Ok(Authorized { dossier, principal, call, taken, asked })
    }
}

/// A model that does not exist. The name is shown back cut and without control characters; it is a name only.
pub(crate) fn unknown_model(name: &str) -> Why {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
    Why::new(
        Stage::Route,
        404,
        ErrorKind::NotFound,
        "model_not_found",
        format!("The model `{shown}` does not exist here. `GET /v1/models` lists those that you may use."),
    )
    .with_param("model")
    .keeping("The model asked for does not exist here, or is not this key's to use.")
}
