//! The gateway as stored resources and shadow copies see it: it runs calls of principals that are known.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::{AnswerFrames, BodySource, CallerInfo};
use headrace_call_state::{Answer, AnswerBody, Rejection};
use headrace_domain::{Endpoint, HoldId};
use headrace_identity::Principal;
use headrace_moderation::Judge;
use headrace_resources::{BatchLine, CallRunner};
use headrace_rollout::{CopyCall, CopyRunner, ShadowRole};
use tokio_util::sync::CancellationToken;

use crate::entry::{self, EnteredCall};
use crate::funds::could_pay;
use crate::{Gateway, questions, settle};

impl CallRunner for Gateway {
    type Entered = EnteredCall;

    async fn enter(
        &self,
        principal: Arc<Principal>,
        endpoint: Endpoint,
        caller: CallerInfo,
        line: Option<BatchLine>,
    ) -> Result<EnteredCall, Answer> {
        if let Some(fetch) = self.fetch_limits(&principal) {
            fetch.await;
        }
        entry::enter(self, endpoint, caller, Some(principal), |context| context.batch = line.map(Box::new))
    }

    async fn run(self: &Arc<Self>, call: EnteredCall, body: Bytes) -> Answer {
        Box::pin(entry::run(self, call, body)).await
    }

    async fn count<B: BodySource>(self: &Arc<Self>, call: EnteredCall, body: B) -> Result<u64, Answer> {
        questions::count_prompt(self, call, body).await
    }

    fn check_funds(&self, principal: &Principal) -> Result<(), Rejection> {
        could_pay(self, principal)
    }

    fn judge(&self) -> Option<Arc<dyn Judge>> {
        self.catalog().judge().filter(|judge| judge.judges_input()).cloned()
    }

    async fn release(&self, hold: HoldId) {
        settle::release_unowned(self, hold).await;
    }
}

impl CopyRunner for Gateway {
    fn draining(&self) -> &CancellationToken {
        Gateway::draining(self)
    }

    fn clock(&self) -> &dyn headrace_domain::Clock {
        &*self.parts().clock
    }

    /// Takes a copy through the path as an in-process caller, and discards its answer.
    async fn run_copy(self: &Arc<Self>, copy: CopyCall) {
        let CopyCall { endpoint, caller, principal, body, running, of } = copy;
        let entered = entry::enter(self, endpoint, caller, Some(principal), |context| {
            context.record.shadow_of = Some(Box::new(of));
            context.shadow = Some(Box::new(ShadowRole::Copy(running)));
        });
        let Ok(entered) = entered else { return };
        let answer = entry::run(self, entered, body).await;
        if let AnswerBody::Stream(mut body) | AnswerBody::Long { mut body, .. } = answer.body {
            while let Some(Ok(_)) = poll_fn(|cx| body.poll_frame(cx)).await {}
        }
    }
}
