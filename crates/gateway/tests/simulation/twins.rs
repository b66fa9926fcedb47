//! Equal requests with one idempotency key: clients that repeat theirs until they have an answer, and a process that is
//! killed at some moment and started again over the same journal. One of them runs and is charged.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use headrace_call_api::{
    AnswerFrames, CallService, CallerInfo, Credentials, IdempotencyHeader, RequestHead, RequestTarget,
};
use headrace_call_state::{Answer, AnswerBody};
use headrace_domain::{Endpoint, NanoDollars};
use headrace_gateway::Gateway;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::world::{Random, Remains, SimClock, World, caller_key};

/// How often something happened.
#[derive(Debug, Default)]
pub(crate) struct SeenTwins {
    answers: u64,
    replays: u64,
    running: u64,
    gone: u64,
    failed: u64,
    left: u64,
    kills: u64,
    /// Worlds in which nothing was charged before the kill, and the request ran afterwards.
    ran_later: u64,
}

impl SeenTwins {
    pub(crate) fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.replays += other.replays;
        self.running += other.running;
        self.gone += other.gone;
        self.failed += other.failed;
        self.left += other.left;
        self.kills += other.kills;
        self.ran_later += other.ran_later;
    }

    pub(crate) fn check(&self) {
        let Self { answers, replays, running, gone, failed, left, kills, ran_later } = self;
        let all = [answers, replays, running, gone, failed, left, kills, ran_later];
        assert!(all.into_iter().all(|count| *count > 0), "{self:?}");
    }
}

/// What the twins of a world got, over all its processes.
#[derive(Default)]
struct Outcome {
    seen: SeenTwins,
    /// The first whole answer.
    answer: Option<String>,
    /// Whether a twin learned that the answer is gone.
    is_gone: bool,
}

impl Outcome {
    fn answered(&mut self, text: String, is_replayed: bool) {
        self.seen.answers += 1;
        self.seen.replays += u64::from(is_replayed);
        let first = self.answer.get_or_insert_with(|| text.clone());
        assert_eq!(*first, text, "all whole answers are the same");
    }
}

/// The request that all twins of a world send.
struct TwinRequest {
    body: Bytes,
    is_streamed: bool,
}

impl TwinRequest {
    fn new(random: &mut Random) -> Self {
        let is_streamed = random.one_in(2);
        let body = json!({
            "model": "demo", "prompt": [[1, 2, 3]], "stream": is_streamed,
            "max_tokens": 1 + random.below(30), "n": 1 + random.below(2),
        });
        Self { body: Bytes::from(body.to_string()), is_streamed }
    }

    async fn send(&self, gateway: &Arc<Gateway>, clock: &SimClock) -> Answer {
        let key = IdempotencyHeader {
            value: b"twins".to_vec(),
            is_repeated: false,
            target: "POST /v1/completions".to_owned(),
        };
        let caller = CallerInfo {
            credentials: Credentials {
                authorization: Some(format!("Bearer {}", caller_key()).into_bytes()),
                ..Credentials::default()
            },
            idempotency: Some(Box::new(key)),
            ..CallerInfo::in_process(clock.wall(), clock.mono())
        };
        match gateway.admit(RequestHead { target: RequestTarget::Call(Endpoint::Completions), caller }) {
            Ok(admission) => gateway.serve(admission, self.body.clone()).await,
            Err(refusal) => refusal,
        }
    }
}

/// Runs a world of twins and checks its final state.
pub(crate) fn run(seed: u64) -> SeenTwins {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x7717);
    let request = Arc::new(TwinRequest::new(&mut random));
    let outcome = Arc::new(Mutex::new(Outcome::default()));
    let mut remains = Remains::none();
    let mut charged = NanoDollars::ZERO;
    if !random.one_in(4) {
        // The first process. When its runtime is dropped, all of its tasks end where they are.
        let life =
            Life { random: random.fork(), request: Arc::clone(&request), outcome: Arc::clone(&outcome) };
        let killed_after = Duration::from_millis(random.below(6_000));
        let ran = runtime().block_on(life.until_killed(remains.clone(), killed_after));
        outcome.lock().unwrap().seen.kills += 1;
        assert!(ran <= 1, "{ran} calls were charged");
        remains.journal.set_down(false);
        remains = Remains { owner: 2, elapsed: killed_after + Duration::from_secs(1), ..remains };
    }
    let life = Life { random, request, outcome: Arc::clone(&outcome) };
    let was_killed = remains.owner == 2;
    runtime().block_on(life.until_all_have_ended(remains, &mut charged, was_killed));
    let mut outcome = outcome.lock().unwrap();
    assert!(outcome.answer.is_none() || !outcome.is_gone, "an answer that a client has is not gone");
    if outcome.answer.is_some() || outcome.is_gone {
        assert!(charged > NanoDollars::ZERO, "an answer is charged");
    }
    std::mem::take(&mut outcome.seen)
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// One process of the world.
struct Life {
    random: Random,
    request: Arc<TwinRequest>,
    outcome: Arc<Mutex<Outcome>>,
}

impl Life {
    fn start(&mut self, remains: Remains) -> (Arc<World>, Vec<tokio::task::JoinHandle<()>>) {
        let (world, hand) = World::over(&mut self.random, remains);
        let world = Arc::new(world);
        tokio::spawn(Arc::clone(&world).disk(hand, self.random.fork()));
        tokio::spawn(Arc::clone(&world).expiry());
        let twins = (0..2 + self.random.below(5)).map(|_| {
            let (world, random) = (Arc::clone(&world), self.random.fork());
            let (request, outcome) = (Arc::clone(&self.request), Arc::clone(&self.outcome));
            tokio::spawn(twin(world, request, outcome, random))
        });
        (Arc::clone(&world), twins.collect())
    }

    /// Returns the number of charged calls that this process knew of.
    async fn until_killed(mut self, remains: Remains, after: Duration) -> usize {
        let (world, _twins) = self.start(remains);
        sleep(after).await;
        world.charged_calls().len()
    }

    /// Lives until all twins have what they can get. Then another one asks without a fault.
    async fn until_all_have_ended(mut self, remains: Remains, charged: &mut NanoDollars, was_killed: bool) {
        let (world, twins) = self.start(remains);
        let before = world.charged();
        world.plant(&mut self.random);
        for twin in twins {
            twin.await.expect("no panic comes through to a client");
        }
        world.until_idle().await;
        world.end_faults();
        world.mend_disk().await;
        let last = Arc::clone(&self.outcome);
        let random = Random(1);
        twin(Arc::clone(&world), Arc::clone(&self.request), last, random).await;
        world.until_idle().await;
        world.mend_disk().await;
        let totals = world.ledger.totals();
        assert_eq!(
            (totals.open_holds, totals.holds),
            (0, totals.settled + totals.released),
            "each hold ends once"
        );
        *charged = world.charged();
        let calls = world.charged_calls();
        if before > NanoDollars::ZERO {
            assert_eq!(*charged, before, "what ran before the kill does not run again");
            assert!(calls.is_empty(), "{calls:?}");
        } else if !world.has_lost_record() {
            assert!(calls.len() <= 1, "one execution is charged: {calls:?}");
            let costs: i64 = calls.iter().map(|call| call.cost.get()).sum();
            assert_eq!(costs, charged.get());
        }
        let mut outcome = self.outcome.lock().unwrap();
        assert!(
            outcome.answer.is_some() || outcome.is_gone,
            "the last twin gets an answer, or learns that it is gone"
        );
        if was_killed && before == NanoDollars::ZERO && *charged > NanoDollars::ZERO {
            outcome.seen.ran_later += 1;
        }
    }
}

/// Sends the request until it has a whole answer, or learns that there is none. Some twins lose patience now and then.
async fn twin(
    world: Arc<World>,
    request: Arc<TwinRequest>,
    outcome: Arc<Mutex<Outcome>>,
    mut random: Random,
) {
    let mut got = Vec::new();
    sleep(Duration::from_millis(random.below(2_000))).await;
    for _ in 0..4_000 {
        let patience = match random.below(4) {
            0 if !world.faults.are_over() => Duration::from_millis(random.below(3_000)),
            _ => Duration::from_secs(600),
        };
        let attempt = async {
            let answer = request.send(&world.gateway, &world.clock).await;
            let head = (answer.status, named(&answer, "idempotent-replayed"), named(&answer, "retry-after"));
            (head, whole(answer).await)
        };
        let Ok(((status, replayed, wait), text)) = timeout(patience, attempt).await else {
            outcome.lock().unwrap().seen.left += 1;
            got.push((0, None));
            continue;
        };
        let code = text.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        let code = code.and_then(|body| body["error"]["code"].as_str().map(str::to_owned));
        got.push((status, code.clone()));
        {
            let mut outcome = outcome.lock().unwrap();
            match (status, text) {
                (200, Some(text)) if !(request.is_streamed && text.contains("\"error\"")) => {
                    return outcome.answered(text, replayed.is_some());
                }
                (409, _) if code.as_deref() == Some("idempotency_answer_gone") => {
                    outcome.seen.gone += 1;
                    outcome.is_gone = true;
                    return;
                }
                (409, _) => {
                    assert_eq!(code.as_deref(), Some("idempotency_in_flight"));
                    assert!(wait.is_some());
                    outcome.seen.running += 1;
                }
                (200 | 429 | 500.., _) => outcome.seen.failed += 1,
                (status, text) => panic!("{status}: {text:?}"),
            }
        }
        sleep(Duration::from_millis(200 + random.below(1_000))).await;
    }
    panic!("a twin gets no answer: {got:?}");
}

fn named(answer: &Answer, name: &str) -> Option<String> {
    answer.headers.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone())
}

/// The whole body. `None` if it breaks off.
async fn whole(answer: Answer) -> Option<String> {
    let mut text = Vec::new();
    match answer.body {
        AnswerBody::Whole(bytes) => text.extend_from_slice(&bytes),
        AnswerBody::Stream(mut body) | AnswerBody::Long { mut body, .. } => {
            while let Some(frame) = poll_fn(|cx| body.poll_frame(cx)).await {
                text.extend_from_slice(&frame.ok()?);
            }
        }
    }
    Some(String::from_utf8(text).unwrap())
}
