//! Stage `authorize`: may this key use this endpoint, and the model by the name that it asked for.

use headrace_domain::{Code, Stage};
use headrace_identity::{EntitlementRefusal, Principal, may_use};

use crate::catalog::Catalog;
use crate::dossier::Dossier;
use crate::refused::Why;
use crate::stages::likely::likely;
use crate::state::{Authorized, Parsed};

impl Parsed {
    pub(crate) fn authorize(self, dossier: &mut Dossier) -> Result<Authorized, Why> {
        let Self { principal, call, taken, catalog, asked, model } = self;
        let unknown = || unknown_model_of(&call.model, &principal, &catalog);
        let may = may_use(&principal, &call.model, call.endpoint).map_err(|refusal| match refusal {
            EntitlementRefusal::Endpoint(_) => Why::new(
                Code::EndpointNotEntitled,
                format!("{refusal} Ask for a key that may, or use another endpoint."),
            ),
            // Told apart from a model that does not exist, it would tell which models do.
            EntitlementRefusal::Model => unknown(),
        });
        let asked = match (asked, may) {
            (Some(asked), Ok(())) => asked,
            (None, _) => {
                dossier.record.model_asked = name_kept(&call.model);
                return Err(unknown());
            }
            (_, Err(why)) => {
                dossier.record.model_asked = name_kept(&call.model);
                return Err(why);
            }
        };
        dossier.mark(Stage::Authorize);
        Ok(Authorized { principal, call, taken, catalog, asked, model })
    }
}

/// Most characters that are kept of a name that is none.
const MOST_CHARS_KEPT: usize = 80;
/// API keys of most providers begin so, those of this one too.
const KEY_PREFIX: &str = "sk-";

/// What the record keeps of the name that was asked for, whether or not there is such a model: no control characters, and nothing of
/// what may be an API key that was pasted in the wrong place.
pub(crate) fn name_kept(asked: &str) -> Option<String> {
    if asked.split_whitespace().any(|word| word.starts_with(KEY_PREFIX)) {
        return None;
    }
    let kept: String = asked.chars().filter(|c| !c.is_control()).take(MOST_CHARS_KEPT).collect();
    Some(kept).filter(|kept| !kept.is_empty())
}

/// The same with the name that the caller probably meant, if there is one among those that it may use.
pub(crate) fn unknown_model_of(name: &str, principal: &Principal, catalog: &Catalog) -> Why {
    let mut why = unknown_model(name);
    if let Some(meant) = likely(name, principal, catalog) {
        why.message.push_str(&format!(" Did you mean `{meant}`?"));
    }
    why
}

/// A model that does not exist. The name is shown back cut and without control characters; it is a name only.
pub(crate) fn unknown_model(name: &str) -> Why {
    let shown: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
    Why::new(
        Code::ModelNotFound,
        format!("The model `{shown}` does not exist here. `GET /v1/models` lists those that you may use."),
    )
    .with_param("model")
    .keeping("The model asked for does not exist here, or is not this key's to use.")
}
