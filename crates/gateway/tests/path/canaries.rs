//! Canary models. A canary that is worse than the models beside it gets no more calls, with evidence, until an operator
//! or another entry starts a new trial.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use headrace_domain::{Dialect, Endpoint, ModelName};
use headrace_engine_api::RelayError;
use headrace_rollout::{CanarySpec, CanaryView, ModelRoute, RouteArm, StickyBy};
use serde_json::json;

use crate::scripted_server::{Script, ScriptedServer, answer_of, body, failed, offer, server, status, whole};
use crate::world::{Setup, World, header, read};

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

const SPEC: CanarySpec = CanarySpec {
    window: Duration::from_secs(3600),
    min_calls: 16,
    errors: 0.05,
    refusals: 0.05,
    first_token: 50.0,
};

fn route(weight: u32) -> BTreeMap<ModelName, ModelRoute> {
    let stable = RouteArm { model: name("a-1"), weight: 2, canary: None };
    let canary = RouteArm { model: name("a-2"), weight, canary: Some(SPEC) };
    BTreeMap::from([(
        name("moving"),
        ModelRoute { arms: vec![stable, canary], sticky: StickyBy::None, ..ModelRoute::default() },
    )])
}

struct Trial {
    world: World,
    servers: [Arc<ScriptedServer>; 2],
}

impl Trial {
    /// The model `a-1` answers well, and `a-2` by the script.
    fn new(canary: impl Fn() -> Script) -> Self {
        let many = |script: &dyn Fn() -> Script| (0..400).map(|_| script()).collect();
        let good = || whole(&answer_of("Hi you"));
        let servers =
            [server("one", Dialect::OpenAi, many(&good)), server("two", Dialect::OpenAi, many(&canary))];
        let trial = Self { world: World::new(Setup::default()), servers };
        trial.offer(2);
        trial
    }

    fn offer(&self, weight: u32) {
        let [one, two] = &self.servers;
        let models: [(&str, &[Arc<ScriptedServer>]); 2] =
            [("a-1", std::slice::from_ref(one)), ("a-2", std::slice::from_ref(two))];
        offer(&self.world, &models, route(weight));
    }

    /// Makes this many calls. Returns how many of them reached the canary.
    async fn ask(&self, calls: usize) -> usize {
        let asked = || self.servers[1].asked.lock().unwrap().len();
        let before = asked();
        for _ in 0..calls {
            let answer =
                self.world.call(Endpoint::ChatCompletions, body(false, &json!({"model": "moving"}))).await;
            if answer.status == 200 {
                assert!(header(&answer, "x-headrace-model").is_some());
            }
            read(answer).await;
            self.world.balance_when_idle().await;
        }
        asked() - before
    }

    fn view(&self) -> CanaryView {
        self.world.gateway.catalog().canary(&name("moving"), &name("a-2")).unwrap()
    }
}

#[tokio::test]
async fn a_canary_that_fails_is_taken_out_and_stays_out_until_it_is_put_on_trial_again() {
    let trial = Trial::new(|| failed(RelayError::Connect { why: "refused".to_owned() }));
    assert!(trial.ask(80).await > 0);
    let view = trial.view();
    // This includes calls that the breaker of its server rejected.
    assert!((16..=24).contains(&view.calls[0]), "{view:?}");
    let why = view.rolled_back.clone().unwrap().why;
    assert!(why.starts_with("calls that fail: ") && why.contains("beside 0 of"), "{why}");
    assert_eq!((view.errors[0], view.errors[1]), (view.calls[0], 0));
    assert_eq!(trial.ask(30).await, 0);
    let news = trial.world.gateway.canary_news();
    assert_eq!(
        (news.len(), news[0].model.as_str(), news[0].rolled_back.why.as_str()),
        (1, "a-2", why.as_str())
    );
    assert!(trial.world.gateway.canary_news().is_empty());

    // A catalogue with the same entry continues the trial with its results.
    trial.offer(2);
    assert_eq!((trial.ask(30).await, trial.view()), (0, view.clone()));
    // Another entry starts another trial.
    trial.offer(3);
    assert_eq!(trial.view().rolled_back, None);
    assert!(trial.ask(15).await > 0);
    // Results from before a restart apply to the same entry only.
    trial.world.gateway.roll_back(news[0].clone());
    assert_eq!(trial.view().rolled_back, None);
    trial.offer(2);
    trial.world.gateway.roll_back(news[0].clone());
    assert_eq!((trial.ask(10).await, trial.view().rolled_back.unwrap().why), (0, why));
    assert!(trial.world.gateway.canary_news().is_empty(), "that is no news");
    // An operator can start a new trial too.
    assert_eq!(trial.world.gateway.resume_canaries(&name("moving")), [name("a-2")]);
    assert!(trial.ask(15).await > 0);
    assert!(trial.world.gateway.resume_canaries(&name("moving")).is_empty());
}

#[tokio::test]
async fn content_that_is_refused_counts_and_what_is_the_callers_fault_does_not() {
    let refuses = Trial::new(|| {
        let mut answer = answer_of("");
        answer["choices"][0]["finish_reason"] = json!("content_filter");
        whole(&answer)
    });
    refuses.ask(80).await;
    let why = refuses.view().rolled_back.unwrap().why;
    assert!(why.starts_with("calls whose content is refused: "), "{why}");

    let error = json!({"error": {"message": "too hot", "type": "invalid_request_error", "param": "temperature", "code": null}});
    let picky = Trial::new(|| status(400, &error));
    assert!(picky.ask(80).await > 20);
    let view = picky.view();
    assert_eq!((view.calls[0], view.rolled_back), (0, None));
}

#[tokio::test]
async fn a_canary_needs_a_model_that_it_is_compared_with() {
    let trial = Trial::new(Script::new);
    let mut alone = route(1);
    alone.get_mut(&name("moving")).unwrap().arms[0].weight = 0;
    let [one, two] = &trial.servers;
    let models: [(&str, &[Arc<ScriptedServer>]); 2] =
        [("a-1", std::slice::from_ref(one)), ("a-2", std::slice::from_ref(two))];
    let offered =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| offer(&trial.world, &models, alone)));
    assert!(offered.is_err());
}
