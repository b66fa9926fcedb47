//! Models at other Headrace servers that take jobs: their engines behind the trait `engine_api::Engine`, by the worker
//! protocol. Sending jobs and reading events is in `workers/`. Must not know a template, a dialect or how an engine
//! computes.

mod model;
mod run;

use std::sync::Arc;

use headrace_domain::{Clock, PrefixKeys, Sampling};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, Job, JobTicket, LoadReport, SubmitRefusal, channel,
};
use headrace_worker::AboutModel;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::load;
use crate::load_gauge::LoadGauge;
use crate::server::UpstreamServer;
use crate::upstream::Upstream;
use crate::workers::model::TheirModel;
use crate::workers::run::WorkerRun;

/// Maximum number of answers of one job.
const MAX_CHOICES: u32 = 1 << 10;

/// A model at a worker.
pub struct WorkerModel {
    server: Arc<UpstreamServer>,
    model: Arc<TheirModel>,
    /// The calls of this process at the worker. Used if the worker reports no load.
    gauge: Arc<LoadGauge>,
}

impl WorkerModel {
    /// Creates a model that an upstream reports. `clock` defines the deadlines of jobs.
    ///
    /// # Errors
    /// The upstream is not used as a worker.
    pub fn new(upstream: &Upstream, about: &AboutModel, clock: &Arc<dyn Clock>) -> Result<Self, String> {
        let server = upstream.server();
        let Some(line) = &server.line else {
            return Err(format!("there is no secret of a worker for `{}`", upstream.name()));
        };
        let slot = line.slot(&about.capabilities.model);
        slot.heard_of_jobs(about.fuller_jobs);
        // Workers with equal bits can continue each other's answers, even if their engines use different names for
        // them.
        let capabilities = Capabilities { numerics: about.bits.clone(), ..about.capabilities.clone() };
        let clock = Arc::clone(clock);
        let model = Arc::new(TheirModel { capabilities, bits: about.bits.clone(), slot, clock });
        let gauge = server.loads.gauge(&about.capabilities.model);
        Ok(Self { server, model, gauge })
    }

    /// Refuses what every worker of this model would refuse, before anything is sent.
    fn check(&self, job: &Job) -> Result<(), SubmitRefusal> {
        let bad = |what: String| Err(SubmitRefusal::Invalid { what });
        let Capabilities { vocab, context_window, .. } = self.model.capabilities;
        let Sampling { n, .. } = job.sampling;
        if let Some(id) = job.prompt.iter().find(|&&id| id >= vocab) {
            return bad(format!("prompt id {id} is outside the vocabulary of {vocab}"));
        }
        if n == 0 || n > MAX_CHOICES || job.first_choice.checked_add(n).is_none() {
            return bad(format!("n = {n}; at most {MAX_CHOICES} answers"));
        }
        if job.parts().0.is_empty() {
            return bad("a prompt without a token".to_owned());
        }
        if job.grammar.is_some() && !self.model.capabilities.grammars {
            return bad(
                "a form: this worker holds answers to none, or is older than jobs that say one".to_owned()
            );
        }
        let needed = job.parts().0.len() as u64;
        if needed > u64::from(context_window) {
            return Err(SubmitRefusal::DoesNotFit { needed, limit: context_window.into() });
        }
        Ok(())
    }
}

impl Engine for WorkerModel {
    fn capabilities(&self) -> &Capabilities {
        &self.model.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.check(&job)?;
        let unavailable = |why: String| SubmitRefusal::Unavailable { why };
        self.server.takes_calls().map_err(|error| unavailable(error.to_string()))?;
        let runtime = Handle::try_current().map_err(|error| unavailable(error.to_string()))?;
        let woken = Arc::new(Notify::new());
        let wake = Arc::clone(&woken);
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(move || wake.notify_one()));
        let run = WorkerRun::new(Arc::clone(&self.server), Arc::clone(&self.model), job, woken);
        runtime.spawn(run.run_to_end(sender));
        Ok(ticket)
    }

    /// The worker's cache cannot be queried from here. The fleet remembers which prompts each worker received.
    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        self.model.slot.report().unwrap_or_else(|| load::report(&self.gauge, &self.server))
    }

    fn health(&self) -> EngineHealth {
        self.server.health()
    }
}
