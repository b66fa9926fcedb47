//! Models at upstreams that take token ids, behind the trait `engine_api::Engine`. Rendering, stop strings and text are
//! done here. The server receives ids and returns ids. The request bodies of each kind are in `tokens/`. Must not know
//! a template or a dialect.

mod ask;
mod choice;
mod form;
mod llama;
mod model;
mod piece;
mod protocol;
mod run;
mod sglang;
mod vllm;

use std::sync::Arc;

use headrace_domain::{PrefixKeys, Sampling};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, Job, JobTicket, LoadReport, ResumeSupport, SubmitRefusal, channel,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::kind::UpstreamKind;
use crate::load;
use crate::load_gauge::LoadGauge;
use crate::server::UpstreamServer;
pub use crate::tokens::model::TokenModelSpec;
use crate::tokens::run::{JobTarget, TokenRun};
use crate::upstream::Upstream;

/// Maximum number of answers of one job. Each answer is a separate call.
const MAX_CHOICES: u32 = 128;
/// Maximum number of alternatives per token: the default limit of the servers.
const MAX_LOGPROBS: u8 = 20;

/// A model at a server that takes token ids.
pub struct TokenModel {
    server: Arc<UpstreamServer>,
    model: Arc<TokenModelSpec>,
    capabilities: Capabilities,
    gauge: Arc<LoadGauge>,
}

impl TokenModel {
    /// Creates a model at an upstream.
    ///
    /// # Errors
    /// Servers of the upstream's kind do not take token ids.
    pub fn new(upstream: &Upstream, model: TokenModelSpec) -> Result<Self, String> {
        if !upstream.kind().takes_ids() {
            return Err(format!("upstreams of kind `{}` are not asked by token ids", upstream.kind()));
        }
        let capabilities = Capabilities {
            model: model.model.clone(),
            compute_mode: upstream.kind().to_string(),
            // The numerics are unique to this upstream, so that no other worker continues its answers as if they were
            // bit-identical.
            numerics: format!("{}:{}", upstream.kind(), upstream.name()),
            vocab: model.vocab,
            context_window: model.context_window,
            max_logprobs: MAX_LOGPROBS,
            kv_tokens: u64::from(model.context_window),
            // For the other kinds, token-exact continuation is not established.
            continues: if upstream.kind() == UpstreamKind::Vllm {
                ResumeSupport::Likeliest
            } else {
                ResumeSupport::Never
            },
            grammars: false,
            thought_caps: false,
            forms: form::kinds(upstream.kind()),
            short_context: None,
        };
        let server = upstream.server();
        let gauge = server.loads.gauge(&model.model);
        Ok(Self { server, model: Arc::new(model), capabilities, gauge })
    }

    fn check(&self, job: &Job) -> Result<(), SubmitRefusal> {
        let bad = |what: String| Err(SubmitRefusal::Invalid { what });
        let (vocab, window) = (self.model.vocab, self.model.context_window);
        let Sampling { n, logprobs, prompt_logprobs, .. } = job.sampling;
        if job.prompt.is_empty() {
            return bad("a prompt without a token".to_owned());
        }
        if let Some(id) = job.prompt.iter().find(|&&id| id >= vocab) {
            return bad(format!("prompt id {id} is outside the vocabulary of {vocab}"));
        }
        if n == 0 || n > MAX_CHOICES || job.first_choice.checked_add(n).is_none() {
            return bad(format!("n = {n}; at most {MAX_CHOICES} answers"));
        }
        if prompt_logprobs.is_some() || job.sampling.max_tokens == 0 {
            return bad("log-probabilities of the prompt: its server is not asked for them".to_owned());
        }
        if logprobs.is_some_and(|top| top > MAX_LOGPROBS) {
            return bad(format!("logprobs beyond {MAX_LOGPROBS}"));
        }
        protocol::check(self.server.spec.kind, &job.sampling)?;
        form::check(self.server.spec.kind, job)?;
        if job.generated > 0 && (n != 1 || job.parts().0.is_empty()) {
            return bad(format!("{} ids generated before, of {n} answers", job.generated));
        }
        let needed = job.parts().0.len() as u64 + 1;
        if needed > u64::from(window) {
            return Err(SubmitRefusal::DoesNotFit { needed, limit: window.into() });
        }
        Ok(())
    }
}

impl Engine for TokenModel {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.check(&job)?;
        let unavailable = |why: String| SubmitRefusal::Unavailable { why };
        self.server.takes_calls().map_err(|error| unavailable(error.to_string()))?;
        let runtime = Handle::try_current().map_err(|error| unavailable(error.to_string()))?;
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(move || wake.notify_one()));
        let at = JobTarget { server: Arc::clone(&self.server), gauge: Arc::clone(&self.gauge) };
        let run = TokenRun::new(at, Arc::clone(&self.model), job, sender, woken);
        runtime.spawn(run.run_to_end());
        Ok(ticket)
    }

    /// The server's cache cannot be queried from here.
    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        load::report(&self.gauge, &self.server)
    }

    fn health(&self) -> EngineHealth {
        self.server.health()
    }
}
