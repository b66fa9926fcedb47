//! Stage `cache`: the keys of the prompts' blocks, by which placement and engines find what was computed before. They are
//! hashed once and travel on with the request. Asks no worker: placement does.

use std::sync::Arc;

use headrace_domain::{PrefixKeys, Stage};

use crate::dossier::Dossier;
use crate::state::{Keyed, Rendered, Work};

impl Rendered {
    pub(crate) fn cache(self, dossier: &mut Dossier) -> Keyed {
        let Self { principal, mut work } = self;
        work.hash();
        dossier.mark(Stage::Cache);
        Keyed { principal, work: Arc::new(work) }
    }
}

impl Work {
    pub(super) fn hash(&mut self) {
        self.keys = self.prompts.iter().map(|ids| PrefixKeys::of(&self.salt, ids)).collect();
    }
}
