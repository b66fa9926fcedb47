//! Models of others that take token ids, behind the seam `engine_api::Engine`: rendering, stop strings and text are ours, and
//! the server gets ids and gives ids. What a kind's bodies look like stands in `tokens/`; this knows no template and no dialect.

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
    Capabilities, Continues, Engine, Health, Job, LoadReport, SubmitRefusal, Ticket, channel,
};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::kind::Kind;
use crate::load;
use crate::load::gauge::Gauge;
use crate::server::Server;
pub use crate::tokens::model::TokenModelSpec;
use crate::tokens::run::{At, Run};
use crate::upstream::Upstream;

/// Answers of one job, at most: each is a call of its own.
const MAX_CHOICES: u32 = 128;
/// Alternatives with each token, at most: what servers give unless told otherwise.
const MAX_LOGPROBS: u8 = 20;

/// A model at a server that takes ids.
pub struct TokenModel {
    server: Arc<Server>,
    model: Arc<TokenModelSpec>,
    capabilities: Capabilities,
    gauge: Arc<Gauge>,
}

impl TokenModel {
    /// A model at an upstream.
    ///
    /// # Errors
    /// Where servers of its kind take no ids from here.
    pub fn new(upstream: &Upstream, model: TokenModelSpec) -> Result<Self, String> {
        if !upstream.kind().takes_ids() {
            return Err(format!("upstreams of kind `{}` are not asked by token ids", upstream.kind()));
        }
        let capabilities = Capabilities {
            model: model.model.clone(),
            compute_mode: upstream.kind().to_string(),
            // Its bits are nobody's but its own: nothing may be continued elsewhere as if they were.
            numerics: format!("{}:{}", upstream.kind(), upstream.name()),
            vocab: model.vocab,
            context_window: model.context_window,
            max_logprobs: MAX_LOGPROBS,
            kv_tokens: u64::from(model.context_window),
            // Of the others it is not known to be the same, to the token.
            continues: if upstream.kind() == Kind::Vllm { Continues::Likeliest } else { Continues::Never },
            grammars: false,
            thought_caps: false,
            forms: form::kinds(upstream.kind()),
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

    fn submit(&self, job: Job) -> Result<Ticket, SubmitRefusal> {
        self.check(&job)?;
        let unavailable = |why: String| SubmitRefusal::Unavailable { why };
        self.server.takes_calls().map_err(|error| unavailable(error.to_string()))?;
        let runtime = Handle::try_current().map_err(|error| unavailable(error.to_string()))?;
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(move || wake.notify_one()));
        let at = At { server: Arc::clone(&self.server), gauge: Arc::clone(&self.gauge) };
        let run = Run::new(at, Arc::clone(&self.model), job, sender, woken);
        runtime.spawn(run.run_to_end());
        Ok(ticket)
    }

    /// Its cache is its own; what it holds is not known here.
    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        load::report(&self.gauge, &self.server)
    }

    fn health(&self) -> Health {
        self.server.health()
    }
}
