//! Stage `place`: a worker for each prompt, and the job it is handed. A bounded queue refuses honestly.

use std::panic::{AssertUnwindSafe, catch_unwind};

use headrace_domain::{Code, ServiceTier, Stage};
use headrace_engine_api::{Job, Priority};

use crate::Gateway;
use crate::dossier::Dossier;
use crate::refused::Why;
use crate::state::Work;

use super::source::Source;

/// What each of a call's jobs may have unread at least, however many they are: some tokens with their log-probabilities.
const LEAST_UNREAD_BYTES: usize = 16 * 1024;

/// Its jobs are with workers. Only who has one may wait for their events.
pub(crate) struct Placed(());

/// Hands every prompt to a worker. After an error some may have been taken all the same: cancel the source.
pub(super) fn place(
    gateway: &Gateway,
    dossier: &mut Dossier,
    work: &Work,
    source: &mut Source,
) -> Result<Placed, Why> {
    // An engine that panics here has failed by its own name, and not the call.
    let submitted = catch_unwind(AssertUnwindSafe(|| {
        (0..work.prompts.len()).try_for_each(|index| submit(gateway, dossier, work, index, source))
    }));
    if let Err(why) = submitted.unwrap_or_else(|_| Err(panicked())) {
        dossier.mark(Stage::Place);
        return Err(why);
    }
    Ok(Placed(()))
}

fn submit(
    gateway: &Gateway,
    dossier: &mut Dossier,
    work: &Work,
    index: usize,
    source: &mut Source,
) -> Result<(), Why> {
    let (Some(prompt), Some(keys)) = (work.prompts.get(index), work.keys.get(index)) else { return Ok(()) };
    let Some(placement) = work.catalog.fleet().place(&work.model.name, keys) else {
        let message = format!("No worker serves `{}` now. Nothing was charged.", work.model.name);
        let why = Why::new(Code::EngineUnavailable, message);
        return Err(why.retry_after(std::time::Duration::from_secs(1)));
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
        unread_bytes: (gateway.config().delivery_buffer_bytes / work.prompts.len()).max(LEAST_UNREAD_BYTES),
    };
    // The engine's time begins here, on threads of its own: this one may be late to learn that it was taken.
    let submitted_ns = dossier.elapsed_ns();
    if source.is_empty() {
        dossier.line.mark(Stage::Place, submitted_ns);
    }
    let ticket = placement.submit(job)?;
    source.add(ticket, placement, submitted_ns);
    Ok(())
}

fn panicked() -> Why {
    let message = "The engine failed on this call. Nothing was charged.";
    Why::new(Code::EngineFailed, message).at(Stage::Place)
}
