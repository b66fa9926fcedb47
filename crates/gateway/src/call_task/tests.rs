//! What a call has only once, over several rounds. Here the tests start further rounds, and drive the call through its
//! steps themselves.

use std::sync::Arc;

use headrace_call_api::CallService;
use headrace_call_state::{Answer, Rejection};
use headrace_domain::{AttemptOutcome, CallOutcome, Endpoint, Stage, Usage, is_partition};
use headrace_engine_api::{GrammarFailed, JobError};
use tokio::sync::oneshot;

use crate::stages::decide;
use crate::world::{Arrival, Setup, World, chat_body, read};

use super::{CallEnding, CallTask, bill_of, delivered_usage};

mod rounds;

/// A call of the world's client from its hold on, before its first round, and its answer.
async fn begun(world: &World) -> (Box<CallTask>, oneshot::Receiver<Answer>) {
    let gateway = &world.gateway;
    let Arrival { head, body } = world.arrival(Endpoint::ChatCompletions, chat_body(false).to_string());
    let (admitted, mut context) = {
        let Ok(admission) = gateway.admit(head) else { panic!("it is let in") };
        let entered = admission.into_call().unwrap();
        (entered.admitted, entered.context)
    };
    let rendered = decide(gateway, admitted, body, &mut context).await.unwrap();
    let funded = rendered.hold(gateway, &mut context).await.unwrap();
    let (head, answer) = oneshot::channel();
    (Box::new(CallTask::new(gateway, context, funded, head)), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_rounds_have_one_hold_one_answer_one_settlement_and_one_trace() {
    let world = World::new(Setup::default());
    let (gateway, before) = (Arc::clone(&world.gateway), world.balance_when_idle().await);
    let (mut call, answer) = begun(&world).await;

    assert!(matches!(call.round(&gateway).await, CallEnding::Completed));
    let once = call.context.record.usage;
    assert!(once.input > 0 && once.output > 0, "{once:?}");

    // The hold grows under its own id, to what the first round cost and the second may cost.
    let (most, cost) = (call.context.record.held, call.settlement.price(&once, &call.context));
    let work = Arc::clone(&call.round.work);
    call.begin_round(&gateway, work).await.unwrap();
    assert_eq!(call.context.record.held, most.checked_add(cost).unwrap());
    let ending = call.round(&gateway).await;
    call.finish(&gateway, ending).await;

    let (text, _) = tokio::join!(async { read(answer.await.unwrap()).await }, call.close(&gateway));
    assert_eq!(text.matches("ha ").count(), 8, "one answer says what both rounds gave: {text}");
    let balance = world.balance_when_idle().await;
    let totals = world.ledger.totals();
    assert_eq!((totals.holds, totals.settled, totals.open_holds), (1, 1, 0));
    assert_eq!(world.traces.0.lock().unwrap().len(), 1);
    let trace = world.last_trace();
    assert_eq!(trace.usage, once.plus(&once));
    assert_eq!(balance, before.checked_sub(trace.cost).unwrap());
    assert_eq!(trace.outcome, CallOutcome::Completed { finish: vec!["stop".to_owned()] });
    let outcomes: Vec<_> = trace.attempts.iter().map(|attempt| &attempt.outcome).collect();
    assert_eq!(outcomes, [&AttemptOutcome::Answered; 2]);
    let [first, second] = &trace.rounds[..] else { panic!("{:?}", trace.rounds) };
    assert_eq!((first.usage, second.usage), (once, once));
    assert_eq!(second.start_ns, trace.attempts[1].start_ns);
    assert!(first.engine.is_some() && second.engine.is_some(), "{:?}", trace.rounds);
    assert!(is_partition(&trace.stages, trace.duration_ns), "{:?}", trace.stages);
    let placed = trace.stages.iter().filter(|span| span.stage == Stage::Place).count();
    assert_eq!(placed, 2, "{:?}", trace.stages);
}

/// What was delivered of one round, and the rest.
fn parts(used: Usage, delivered: u64) -> (Usage, Usage) {
    delivered_usage([used].into_iter(), delivered)
}

#[test]
fn of_an_answer_that_stalls_nothing_is_paid_for_that_was_not_delivered() {
    let used = Usage { input: 7, reasoning: 30, output: 12, ..Usage::default() };
    for (delivered, reasoning, output) in [(0, 0, 0), (10, 10, 0), (30, 30, 0), (35, 30, 5), (99, 30, 12)] {
        let stalled = CallEnding::Stalled { waited: std::time::Duration::from_secs(30) };
        let (Some(bill), _) =
            bill_of(&stalled, parts(used, delivered), Usage::default(), delivered, Vec::new())
        else {
            panic!("{delivered}")
        };
        assert_eq!(bill.charged, Usage { reasoning, output, ..used }, "{delivered}");
        assert_eq!(
            bill.charged.plus(&bill.lost),
            used,
            "{delivered}: every token is on one side or the other"
        );
    }
}

#[test]
fn an_answer_that_its_own_form_ends_is_charged_what_it_used() {
    let used = Usage { input: 7, cached_input: 3, reasoning: 2, output: 12, ..Usage::default() };
    let failed = |error: JobError| CallEnding::Failed(Rejection::job_failed(&error));
    for delivered in [0, 5] {
        let lost = failed(JobError::Form { why: "it took too much work".to_owned() });
        let (Some(bill), _) = bill_of(&lost, parts(used, delivered), Usage::default(), delivered, Vec::new())
        else {
            panic!("{delivered}")
        };
        assert_eq!((bill.charged, bill.lost), (used, Usage::default()), "{delivered}");
        let ours = failed(JobError::from(GrammarFailed::panicked()));
        let (Some(bill), _) = bill_of(&ours, parts(used, delivered), Usage::default(), delivered, Vec::new())
        else {
            panic!("{delivered}")
        };
        assert_ne!(bill.charged, used, "{delivered}: a panic is not the caller's");
        assert_eq!(bill.charged.plus(&bill.lost), used);
    }
}
