//! Stage `cache`: the keys of the prompts' blocks, by which placement and engines find what was computed before. They are
//! hashed once and travel on with the request. Asks no worker: placement does.

use headrace_domain::{PrefixKeys, Stage};

use crate::dossier::Dossier;
use crate::state::{Rendered, Work};

impl Rendered {
    pub(crate) fn cache(mut self, dossier: &mut Dossier) -> Self {
        self.work.hash();
        dossier.mark(Stage::Cache);
        self
    }
}

impl Work {
    pub(super) fn hash(&mut self) {
        self.keys = self.prompts.iter().map(|ids| PrefixKeys::of(&self.salt, ids)).collect();
    }
}
