//! Stage `cache`: the keys of the prompts' blocks, by which placement and engines find what was computed before. They are
//! hashed once and travel on with the request. Asks no worker: placement does.

use headrace_domain::{PrefixKeys, Stage};

use crate::dossier::Dossier;
use crate::state::Rendered;

impl Rendered {
    pub(crate) fn cache(mut self, dossier: &mut Dossier) -> Self {
        let work = &mut self.work;
        work.keys = work.prompts.iter().map(|ids| PrefixKeys::of(&work.salt, ids)).collect();
        dossier.mark(Stage::Cache);
        self
    }
}
