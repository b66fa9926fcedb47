//! Stage `place`: a worker for each prompt, and the job it is handed. A bounded queue refuses honestly.

use std::panic::{AssertUnwindSafe, catch_unwind};

use headrace_domain::{ServiceTier, Stage};
use headrace_engine_api::{Job, Priority};
use headrace_ledger::ReleaseReason;
use headrace_wire::ErrorKind;

use crate::Gateway;
use crate::dossier::Dossier;
use crate::jobs::Jobs;
use crate::refused::{Refused, Why};
use crate::settle::{Pending, Settlement};
use crate::state::{Held, Work};

/// Its jobs are with workers.
pub(crate) struct Placed {
    pub(crate) dossier: Dossier,
    pub(crate) work: Work,
    pub(crate) settlement: Settlement,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) jobs: Jobs,
    /// When they were handed over, nanoseconds from the request's start.
    pub(crate) placed_ns: u64,
}

impl Held {
    /// Hands every prompt to a worker, or gives back everything that was taken.
    pub(crate) async fn place(mut self, gateway: &Gateway) -> Result<Placed, (Refused, Pending)> {
        self.dossier.skip();
        let mut jobs = Jobs::default();
        // A panic of an engine's here must not lose the settlement.
        let submitted = catch_unwind(AssertUnwindSafe(|| {
            (0..self.work.prompts.len())
                .try_for_each(|index| submit(gateway, &self.dossier, &self.work, index, &mut jobs))
        }));
        if let Err(why) = submitted.unwrap_or_else(|_| Err(Box::new(panicked()))) {
            jobs.cancel().await;
            let pending = self.settlement.release(gateway, ReleaseReason::Refused);
            return Err((self.dossier.refuse(*why), pending));
        }
        self.dossier.mark(Stage::Place);
        let placed_ns = self.dossier.elapsed_ns();
        let Self { dossier, work, settlement, headers } = self;
        Ok(Placed { dossier, work, settlement, headers, jobs, placed_ns })
    }
}

fn submit(
    gateway: &Gateway,
    dossier: &Dossier,
    work: &Work,
    index: usize,
    jobs: &mut Jobs,
) -> Result<(), Box<Why>> {
    let (Some(prompt), Some(keys)) = (work.prompts.get(index), work.keys.get(index)) else { return Ok(()) };
    let Some(placement) = gateway.parts().fleet.place(&work.model.name, keys) else {
        let message = format!("No worker serves `{}` now. Nothing was charged.", work.model.name);
        let why = Why::new(Stage::Place, 503, ErrorKind::Overloaded, "engine_unavailable", message);
        return Err(Box::new(why.retry_after(std::time::Duration::from_secs(1))));
    };
    let first_choice = u32::try_from(index).unwrap_or(u32::MAX).saturating_mul(work.sampling.n);
    let job = Job {
        request: dossier.id,
        first_choice,
        prompt: std::sync::Arc::clone(prompt),
        sampling: work.sampling.clone(),
        salt: work.salt,
        keys: Some(keys.clone()),
        tenant: work.tenant,
        weight: work.weight,
        priority: match work.call.tier {
            ServiceTier::Standard => Priority::Normal,
            ServiceTier::Flex => Priority::Idle,
        },
        start_deadline_ns: work.call.timeout.map(|timeout| dossier.deadline_ns(timeout)),
    };
    let ticket = placement.submit(job).map_err(|refusal| Box::new(Why::from(refusal)))?;
    jobs.add(ticket, placement);
    Ok(())
}

fn panicked() -> Why {
    let message = "The engine failed on this call. Nothing was charged.";
    Why::new(Stage::Place, 500, ErrorKind::Internal, "engine_failed", message)
}
