//! The money, the limits and the cache pins of a call of several rounds.

use headrace_catalog::{Catalog, CatalogOffer, NameRules};
use headrace_domain::{Clock, Code, NanoDollars, TokenClass};
use headrace_engine_api::Engine;
use headrace_identity::RateLimits;
use headrace_ledger::prices::{CostList, PriceList};
use serde_json::{Value, json};

use super::*;
use crate::world::{MODEL, Script, read_to_the_end};

/// Nano-dollars per million tokens that do not make whole nano-dollars per token.
const ODD: [i64; 4] = [1_234_567, 7_654_321, 9_999_999, 3_333_333];

fn with_prices(world: &World, prices: Value) {
    let former = world.gateway.catalog();
    let offer = CatalogOffer {
        models: former.models().cloned().collect(),
        aliases: Default::default(),
        prices: PriceList::from_config(&serde_json::from_value::<Vec<_>>(prices).unwrap()).unwrap(),
        costs: CostList::default(),
        fleet: Arc::clone(former.fleet()),
        judge: None,
        weights: Default::default(),
        names: NameRules::default(),
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
}

/// The rounded cost of tokens at a price per million.
fn cost(tokens: u64, price: i64) -> i64 {
    let parts = i128::from(tokens) * i128::from(price);
    i64::try_from((parts + 500_000) / 1_000_000).unwrap()
}

/// Closes a call that is settled, while its client reads what there is.
async fn close(world: &World, call: Box<CallTask>, answer: oneshot::Receiver<Answer>) {
    let read = async {
        if let Ok(answer) = answer.await {
            let _ = read_to_the_end(answer).await;
        }
    };
    let _ = tokio::join!(read, call.close(&world.gateway));
}

async fn finish(
    world: &World,
    mut call: Box<CallTask>,
    answer: oneshot::Receiver<Answer>,
    ending: CallEnding,
) {
    call.finish(&world.gateway, ending).await;
    close(world, call, answer).await;
}

/// Ten short prompts are not one long prompt: each round has the price of its own length, to the nano-dollar.
#[tokio::test(flavor = "multi_thread")]
async fn each_round_has_the_price_of_its_own_prompt() {
    const ROUNDS: i64 = 10;
    let [input, output, long_input, long_output] = ODD;
    // How many of its prompts a price for long prompts lies above, and whether that price applies.
    for (prompts, is_long) in [(1, false), (3, false), (0, true)] {
        let world = World::new(Setup::default());
        let (probe, answer) = begun(&world).await;
        let prompt = probe.round.work.prompt_tokens();
        finish(&world, probe, answer, CallEnding::ClientGone).await;
        // A price above 0 tokens would be the ordinary one.
        let above = (prompt * prompts).max(1);
        with_prices(
            &world,
            json!([{"model": MODEL, "input": input, "output": output},
                {"model": MODEL, "above": above, "input": long_input, "output": long_output}]),
        );
        let before = world.balance_when_idle().await;
        let (mut call, answer) = begun(&world).await;
        let mut ending = call.round(&world.gateway).await;
        for _ in 1..ROUNDS {
            assert!(matches!(ending, CallEnding::Completed));
            let work = Arc::clone(&call.round.work);
            call.begin_round(&world.gateway, work).await.unwrap();
            ending = call.round(&world.gateway).await;
            let used = call.context.record.usage;
            let price = call.settlement.price(&used, &call.context);
            assert!(price <= call.context.record.held, "the hold covers what was used");
        }
        finish(&world, call, answer, ending).await;
        let trace = world.last_trace();
        let each = if is_long {
            cost(prompt, long_input) + cost(4, long_output)
        } else {
            cost(prompt, input) + cost(4, output)
        };
        assert_eq!(trace.cost.get(), ROUNDS * each, "{prompts}");
        assert_eq!(before.checked_sub(world.balance_when_idle().await).unwrap(), trace.cost, "{prompts}");
        assert_eq!(trace.loss, NanoDollars::ZERO, "{prompts}");
        let lines = &trace.billed.as_ref().unwrap().lines;
        assert_eq!(lines.len() as i64, 2 * ROUNDS, "{lines:?}");
        assert_eq!(lines.iter().map(|line| line.amount.get()).sum::<i64>(), trace.cost.get());
        let of =
            |class: TokenClass| lines.iter().filter(move |line| line.class == class).map(|line| line.tokens);
        assert_eq!(of(TokenClass::Input).sum::<u64>(), 10 * prompt);
        assert_eq!(of(TokenClass::Output).sum::<u64>(), 40);
    }
}

#[test]
fn what_was_delivered_is_charged_round_by_round() {
    let round = |input, reasoning, output| Usage { input, reasoning, output, ..Usage::default() };
    let rounds = [round(7, 10, 5), round(20, 10, 5)];
    for (delivered, reasoning, output) in
        [(0, 0, 0), (9, 9, 0), (12, 10, 2), (15, 10, 5), (17, 12, 5), (27, 20, 7), (99, 20, 10)]
    {
        let (written, unwritten) = delivered_usage(rounds.into_iter(), delivered);
        assert_eq!(written, round(27, reasoning, output), "{delivered}");
        assert_eq!(written.plus(&unwritten), round(27, 20, 10), "{delivered}");
    }
}

/// The limits of one key that gives the first round all that it asks for, and a second one less.
fn limited(tokens: u64) -> RateLimits {
    RateLimits { tokens_per_minute: Some(tokens), ..RateLimits::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_refuses_a_round_is_named_and_the_call_still_completes() {
    let world = World::new(Setup::default());
    let (probe, answer) = begun(&world).await;
    let asks = probe.round.work.prompt_tokens() + probe.round.work.most_output_tokens();
    finish(&world, probe, answer, CallEnding::ClientGone).await;

    let world = World::new(Setup { limits: limited(asks + 1), ..Setup::default() });
    let before = world.balance_when_idle().await;
    let (mut call, answer) = begun(&world).await;
    let ending = call.round(&world.gateway).await;
    let (once, held) = (call.context.record.usage, call.context.record.held);
    let work = Arc::clone(&call.round.work);
    let refused = call.begin_round(&world.gateway, work).await.unwrap_err();
    assert_eq!(refused.code, Code::TokensPerMinute);
    let why = refused.traced();
    assert!(why.message.contains(&format!("{}", asks + 1)), "{}", why.message);
    assert_eq!(call.context.record.held, held, "no money was taken for it");
    finish(&world, call, answer, ending).await;
    let trace = world.last_trace();
    assert_eq!(
        (trace.usage, trace.outcome.clone()),
        (once, CallOutcome::Completed { finish: vec!["stop".to_owned()] })
    );
    assert_eq!(before.checked_sub(world.balance_when_idle().await).unwrap(), trace.cost);
    let limits = &world.gateway.parts().limits;
    assert_eq!((limits.metrics().leases, limits.metrics().abandoned), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_refuses_a_round_leaves_the_first_one_paid() {
    let world = World::new(Setup::default());
    let (probe, answer) = begun(&world).await;
    let most = probe.context.record.held;
    finish(&world, probe, answer, CallEnding::ClientGone).await;

    let world = World::new(Setup { credit: most, ..Setup::default() });
    let (mut call, answer) = begun(&world).await;
    let ending = call.round(&world.gateway).await;
    let cost = call.settlement.price(&call.context.record.usage, &call.context);
    let work = Arc::clone(&call.round.work);
    let refused = call.begin_round(&world.gateway, work).await.unwrap_err();
    assert_eq!(refused.status, 402, "{refused:?}");
    finish(&world, call, answer, ending).await;
    assert_eq!(world.balance_when_idle().await, most.checked_sub(cost).unwrap());
    assert_eq!(world.ledger.totals().open_holds, 0);
}

/// How a call that holds prefixes in a cache may end.
#[derive(Clone, Copy, Debug)]
enum CallEnd {
    Completed,
    Cancelled,
    Panicked,
    Refused,
    Dropped,
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_are_held_over_rounds_and_released_however_the_call_ends() {
    for end in [CallEnd::Completed, CallEnd::Cancelled, CallEnd::Panicked, CallEnd::Refused, CallEnd::Dropped]
    {
        let world = World::new(Setup::default());
        let (mut call, answer) = begun(&world).await;
        call.hold_prefixes();
        let ending = call.round(&world.gateway).await;
        let work = Arc::clone(&call.round.work);
        call.begin_round(&world.gateway, work).await.unwrap();
        let id = call.context.id;
        assert_eq!(*world.engine.holders.lock().unwrap(), [id], "{end:?}");
        let held = world.engine.jobs.lock().unwrap().last().unwrap().held.unwrap();
        assert_eq!(u64::from(held.tokens), call.round.work.prompt_tokens(), "{end:?}");
        match end {
            CallEnd::Completed => {
                assert!(matches!(call.round(&world.gateway).await, CallEnding::Completed));
                finish(&world, call, answer, ending).await;
            }
            CallEnd::Cancelled => finish(&world, call, answer, CallEnding::ClientGone).await,
            CallEnd::Panicked => {
                call.salvage(&world.gateway).await;
                assert!(world.engine.holders.lock().unwrap().is_empty(), "{end:?}");
                close(&world, call, answer).await;
            }
            CallEnd::Refused => {
                world.script(Script::Full);
                let ending = call.round(&world.gateway).await;
                assert!(!matches!(ending, CallEnding::Completed));
                finish(&world, call, answer, ending).await;
            }
            CallEnd::Dropped => drop(call),
        }
        assert!(world.engine.holders.lock().unwrap().is_empty(), "{end:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_holds_nothing_sends_nothing_to_hold() {
    let world = World::new(Setup::default());
    assert_eq!(world.chat(false).await.status, 200);
    assert!(world.engine.jobs.lock().unwrap().iter().all(|job| job.held.is_none()));
    world.engine.release_pins(headrace_domain::RequestId::from_bits(1));
}
