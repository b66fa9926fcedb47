//! In-process callers: they show no credentials, and are served as the principal that they act for.

use std::sync::Arc;

use headrace_call_api::{CallService, CallerInfo, RequestHead};
use headrace_domain::{Clock, Endpoint};
use headrace_identity::RateLimits;

use crate::world::{Arrival, Setup, World, chat_body, trace_of};

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_inside_acts_within_the_limits_and_for_the_money_of_its_principal() {
    let limits = RateLimits { requests_per_minute: Some(2), ..RateLimits::default() };
    let world = World::new(Setup { limits, ..Setup::default() });
    let principal = world.directory.authenticate(&world.key, world.clock.now()).unwrap();
    let before = world.balance_when_idle().await;
    let call = async || {
        let Arrival { head, body } = world.arrival(Endpoint::ChatCompletions, chat_body(false).to_string());
        let RequestHead { target, caller } = head;
        let caller = CallerInfo::in_process(caller.started, caller.started_mono_ns);
        match world.gateway.admit_as(Arc::clone(&principal), RequestHead { target, caller }).await {
            Ok(admission) => world.gateway.serve(admission, body).await,
            Err(answer) => answer,
        }
    };
    let record = trace_of(&world, call().await).await;
    assert_eq!((record.org.as_ref(), record.key.as_ref()), (Some(&world.org), Some(&principal.key)));
    assert_eq!(world.balance_when_idle().await.get(), before.get() - record.cost.get());
    assert!(record.cost.get() > 0);
    assert_eq!((call().await.status, call().await.status), (200, 429));
    world.gateway.drain(std::time::Duration::ZERO).await;
    assert_eq!(call().await.status, 503, "a drain is for everybody");
}
