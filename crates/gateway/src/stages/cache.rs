//! Stage `cache`: hashes the keys of the prompts' blocks, by which placement and engines find cached prefixes. They are
//! computed once and stay with the request. Asks no worker: placement does. Also finds what a call changed since the
//! answer that it names.

use std::sync::Arc;

use headrace_call_state::Rejection;
use headrace_catalog::Backend;
use headrace_domain::{PrefixKeys, Stage};

use crate::Gateway;
use crate::request_context::RequestContext;
use crate::state::{KeyedCall, RenderedCall, RenderedWork};

mod diagnose;
pub(crate) mod miss;

impl RenderedCall {
    pub(crate) async fn cache(
        self,
        gateway: &Gateway,
        context: &mut RequestContext,
    ) -> Result<KeyedCall, Rejection> {
        let Self { principal, mut work } = self;
        work.hash();
        let work = diagnose::diagnosed(work, gateway, context).await?;
        context.record.cache_diagnosis = work.diagnosis.as_ref().map(diagnose::traced);
        context.end_stage(Stage::Cache);
        Ok(KeyedCall { principal, work: Arc::from(work) })
    }
}

impl RenderedWork {
    /// Computes the block keys of the prompts, as the model's engines do.
    pub(super) fn hash(&mut self) {
        let Self { model, sampling, salt, rendered, .. } = self;
        let Some(prompts) = rendered.prompts_mut() else { return };
        let keys = |ids: &Arc<[u32]>| match &model.backend {
            Backend::Tokens(backend) => {
                let salt = backend.capabilities.block_salt(salt, ids.len(), sampling.max_tokens);
                PrefixKeys::of(&salt, ids)
            }
            Backend::Vectors(_) | Backend::Messages(_) => PrefixKeys::of(salt, ids),
        };
        prompts.keys = prompts.ids.iter().map(keys).collect();
    }
}
