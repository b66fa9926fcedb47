//! Stage `cache`: how much of the prompts the workers have computed before. An estimate: they alone know for certain.

use headrace_domain::{PrefixKeys, Stage};

use crate::Gateway;
use crate::dossier::Dossier;
use crate::state::Rendered;

impl Rendered {
    pub(crate) fn cache(mut self, gateway: &Gateway, dossier: &mut Dossier) -> Self {
        let (work, fleet) = (&mut self.work, &gateway.parts().fleet);
        // Hashed once: the keys travel on with the request, to placement and into the engine.
        work.keys = work.prompts.iter().map(|ids| PrefixKeys::of(&work.salt, ids)).collect();
        let cached: usize = work.keys.iter().map(|keys| fleet.cached_prefix(&work.model.name, keys)).sum();
        tracing::trace!(request = %dossier.id, cached, "cached prefix estimated");
        dossier.mark(Stage::Cache);
        self
    }
}
