//! Stage `route`: from the requested name to the model that serves it, in a region where the call may run. The model
//! was chosen when the body was read. Only callers that may use the name learn the choice.

use headrace_call_state::Rejection;
use headrace_catalog::Catalog;
use headrace_domain::{Code, ModelName, Residency, Stage};
use headrace_identity::Principal;

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{AuthorizedCall, RoutedCall};

use super::authorize::{name_kept, unknown_model_of};

impl AuthorizedCall {
    pub(crate) fn route(
        self,
        gateway: &Gateway,
        context: &mut RequestContext,
    ) -> Result<RoutedCall, Rejection> {
        let Self { principal, call, taken, catalog, asked, model } = self;
        let Some(model) = model else {
            context.record.model_asked = name_kept(asked.as_str());
            return Err(unknown_model_of(asked.as_str(), &principal, &catalog));
        };
        // The name is recorded unchanged: it leads to a model, and answers contain it.
        context.record.model_asked = Some(asked.to_string());
        if let Some((name, notice)) = catalog.notice(&asked, &model.name)
            && notice.is_over(gateway.parts().clock.now())
            && !notice.moves
        {
            return Err(Rejection::retired(notice.refusal(name)));
        }
        context.served_by(&model);
        // Placement enforces the regions in any case. This check explains the rejection to the caller.
        if !catalog.fleet().serves_within(&model.name, &principal.regions) {
            return Err(region_not_allowed(&principal, &catalog, &asked));
        }
        context.end_stage(Stage::Route);
        Ok(RoutedCall { principal, call, taken, catalog, model })
    }
}

/// The rejection of a model that is offered in no region where the caller's calls may run.
pub(crate) fn region_not_allowed(principal: &Principal, catalog: &Catalog, asked: &ModelName) -> Rejection {
    let Principal { org, regions, org_regions, .. } = principal;
    let pin = match org_regions {
        own if own == regions => format!("Organisation `{org}` is pinned to {regions}"),
        Residency::Anywhere => format!("This key is pinned to {regions}"),
        wider => format!("This key is pinned to {regions}, within the {wider} of organisation `{org}`"),
    };
    let offered = catalog.regions_of(asked);
    let mut places: Vec<&str> = offered.iter().flatten().map(headrace_domain::Region::as_str).collect();
    if offered.contains(&None) {
        places.push("no region that is known");
    }
    let message = format!(
        "{pin}, and `{asked}` is offered in {}. `GET /v1/models` lists what is offered where your calls may be worked on. \
         Nothing was charged.",
        places.join(", ")
    );
    Rejection::new(Code::RegionNotAllowed, message).with_param("model")
}
