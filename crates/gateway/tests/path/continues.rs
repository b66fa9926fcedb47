//! An answer whose worker is lost midway is continued by another one that computes the same. At whichever token it was
//! cut, the client gets the bytes of an undisturbed answer, pays for them once, and the trace lists both attempts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_catalog::{Catalog, CatalogOffer, ModelPolicy, OnBreak, ServedModel};
use headrace_domain::{
    AttemptOutcome, CallOutcome, Clock, ContinuedAnswer, Endpoint, FinishReason, ModelName, PrefixKeys,
    Region, Residency, Usage, is_partition,
};
use headrace_engine_api::{
    Capabilities, Engine, EngineHealth, Job, JobError, JobEvent, JobReport, JobTicket, LoadReport,
    ResumeSupport, SubmitRefusal, channel,
};
use headrace_fleet::{Fleet, Worker, WorkerSite};
use headrace_ledger::prices::{CostConfig, CostList, PriceList};
use serde_json::{Value, json};

use crate::moves::said;
use crate::world::{MODEL, Setup, World, capabilities, header, read_to_the_end, score};

/// Whether an engine reports that it leaves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leaves {
    Silently,
    Saying,
}

/// An engine that generates a fixed text for each choice, one character per token, after the part that already exists.
/// The text of every third token comes with the next one.
struct Written {
    capabilities: Capabilities,
    text: &'static str,
    /// The number of token or finish events after which it leaves, and how.
    leaves: Option<(usize, Leaves)>,
    jobs: Mutex<Vec<Job>>,
}

impl Written {
    fn ids(&self, choice: u32) -> Vec<u32> {
        self.text.bytes().map(|byte| u32::from(byte) + choice * 7).collect()
    }

    /// The events of a choice from its token number `from` on.
    fn events(&self, job: &Job, choice: u32, from: usize) -> Vec<JobEvent> {
        let (ids, chars): (Vec<u32>, Vec<char>) = (self.ids(choice), self.text.chars().collect());
        let mut events = Vec::new();
        for at in from..ids.len() {
            let held = |at: usize| at % 3 == 1 && at + 1 < ids.len();
            let from = if at > 0 && held(at - 1) { at - 1 } else { at };
            let text = if held(at) { String::new() } else { chars[from..=at].iter().collect() };
            let logprobs = job.sampling.logprobs.map(score).into_iter().collect();
            events.push(JobEvent::Tokens { choice, ids: vec![ids[at]], text, logprobs });
        }
        events.push(JobEvent::Finished { choice, reason: FinishReason::Stop });
        events
    }
}

impl Engine for Written {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn submit(&self, job: Job) -> Result<JobTicket, SubmitRefusal> {
        self.jobs.lock().unwrap().push(job.clone());
        let (sender, ticket) = channel(job.unread_bytes, Arc::new(|| {}));
        sender.send(JobEvent::Started { cached_tokens: 3 });
        let (_, before) = job.parts();
        let mut choices: Vec<_> = (job.first_choice..job.first_choice + job.sampling.n)
            .map(|choice| {
                assert!(self.ids(choice).starts_with(before), "what there is is what was written");
                self.events(&job, choice, before.len()).into_iter()
            })
            .collect();
        let (mut sent, mut output) = (0, 0);
        let report = |output| {
            let input = job.prompt.len() as u64 - 3;
            let usage = Usage { input, cached_input: 3, output, ..Usage::default() };
            Arc::new(JobReport { usage, ..JobReport::default() })
        };
        // One event per choice in turn, until all have ended.
        loop {
            let mut any = false;
            for choice in &mut choices {
                let Some(event) = choice.next() else { continue };
                if let Some((after, how)) = self.leaves
                    && sent == after
                {
                    if how == Leaves::Saying {
                        sender.finish(JobEvent::Failed {
                            error: JobError::ShuttingDown,
                            report: report(output),
                        });
                    }
                    return Ok(ticket);
                }
                any = true;
                sent += 1;
                output += u64::from(matches!(event, JobEvent::Tokens { .. }));
                sender.send(event);
            }
            if !any {
                break;
            }
        }
        match self.leaves {
            Some((after, _)) if after == sent => {}
            _ => sender.finish(JobEvent::Done(report(output))),
        }
        Ok(ticket)
    }

    fn cached_prefix(&self, _keys: &PrefixKeys) -> usize {
        0
    }

    fn load(&self) -> LoadReport {
        LoadReport::default()
    }

    fn health(&self) -> EngineHealth {
        EngineHealth::Up
    }
}

type Leaving = Option<(usize, Leaves)>;

fn world(text: &'static str, engines: &[(ResumeSupport, &str, Leaving)]) -> (World, Vec<Arc<Written>>) {
    world_where(text, engines, OnBreak::Error)
}

fn world_where(
    text: &'static str,
    engines: &[(ResumeSupport, &str, Leaving)],
    on_break: OnBreak,
) -> (World, Vec<Arc<Written>>) {
    world_of(text, engines, on_break, None, &[])
}

/// With costs, each engine belongs to its own upstream. Engines with an entry in `regions` are in that region.
fn world_of(
    text: &'static str,
    engines: &[(ResumeSupport, &str, Leaving)],
    on_break: OnBreak,
    costs: Option<CostList>,
    regions: &[&str],
) -> (World, Vec<Arc<Written>>) {
    let world = World::new(Setup { stall: Duration::from_secs(20), ..Setup::default() });
    let engine = |&(continues, numerics, leaves): &(ResumeSupport, &str, Leaving)| {
        let capabilities = Capabilities { continues, numerics: numerics.to_owned(), ..capabilities() };
        Arc::new(Written { capabilities, text, leaves, jobs: Mutex::default() })
    };
    let engines: Vec<Arc<Written>> = engines.iter().map(engine).collect();
    let name = ModelName::new(MODEL).unwrap();
    let worker = |(at, engine): (usize, &Arc<Written>)| {
        let engine = Arc::clone(engine) as Arc<dyn Engine>;
        let worker = match &costs {
            None => Worker::new(&format!("w{at}"), name.clone(), engine),
            Some(_) => Worker::new(&format!("w{at}/theirs"), name.clone(), engine)
                .at(&Arc::new(WorkerSite::new(&format!("w{at}")))),
        };
        worker.within(regions.get(at).map(|region| Region::new(region).unwrap()))
    };
    let prices = json!([{"model": MODEL, "input": 1_000_000_000i64, "cached_input": 100_000_000i64,
        "output": 4_000_000_000i64}]);
    let of_policy = |model: &Arc<ServedModel>| {
        Arc::new(ServedModel {
            policy: ModelPolicy { on_break, ..ModelPolicy::default() },
            ..(**model).clone()
        })
    };
    let offer = CatalogOffer {
        models: world.gateway.catalog().models().map(of_policy).collect(),
        aliases: BTreeMap::new(),
        prices: PriceList::from_config(&serde_json::from_value::<Vec<_>>(prices).unwrap()).unwrap(),
        fleet: Arc::new(Fleet::new(engines.iter().enumerate().map(worker))),
        costs: costs.unwrap_or_default(),
        judge: None,
        weights: BTreeMap::new(),
        names: headrace_catalog::NameRules::default(),
    };
    drop(world.gateway.swap(Catalog::checked(offer, world.clock.now()).unwrap()));
    (world, engines)
}

const TEXT: &str = "an answer of words";
const CALL: &str = "so: <tool_call>\n{\"name\": \"t\", \"arguments\": {\"a\": 1}}\n</tool_call>";

fn chat(more: &Value) -> Value {
    let mut body = json!({"model": MODEL, "max_tokens": 90, "messages": [{"role": "user", "content": "go"}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn calls() -> Vec<(&'static str, Endpoint, Value)> {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let tools = json!([{"type": "function", "function": {"name": "t", "parameters": schema}}]);
    let mut calls = Vec::new();
    for stream in [false, true] {
        let usage = if stream { json!({"include_usage": true}) } else { Value::Null };
        calls.extend([
            (TEXT, Endpoint::ChatCompletions, chat(&json!({"stream": stream, "stream_options": usage}))),
            (TEXT, Endpoint::ChatCompletions, chat(&json!({"stream": stream, "n": 2, "temperature": 0.7}))),
            (
                TEXT,
                Endpoint::ChatCompletions,
                chat(
                    &json!({"stream": stream, "logprobs": true, "top_logprobs": 2, "return_token_ids": true}),
                ),
            ),
            (CALL, Endpoint::ChatCompletions, chat(&json!({"stream": stream, "tools": tools}))),
            (TEXT, Endpoint::Messages, chat(&json!({"stream": stream}))),
        ]);
    }
    calls
}

/// The events of a stream, sorted by choice: the order between choices is not guaranteed.
fn by_choice((status, text): (u16, String)) -> (u16, Vec<String>) {
    // A tool call has a different id in each answer.
    let mut parts = text.split("\"call_");
    let mut bare = parts.next().unwrap_or_default().to_owned();
    parts.for_each(|part| bare.extend(["\"call", &part[32..]]));
    let mut events: Vec<String> = bare.split("\n\n").map(str::to_owned).collect();
    let second = |event: &String| event.contains("\"choices\":[{\"index\":1,");
    let last = |event: &String| event.contains("\"choices\":[]") || !event.contains("\"choices\"");
    if events.len() > 2 && events.iter().any(second) {
        events.sort_by_key(|event| if last(event) { 2 } else { u8::from(second(event)) });
    }
    (status, events)
}

const SAME: (ResumeSupport, &str) = (ResumeSupport::Exactly, "n1");

fn with(leaves: Leaving) -> (ResumeSupport, &'static str, Leaving) {
    (SAME.0, SAME.1, leaves)
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_token_it_is_cut_at_the_bytes_are_those_of_an_undisturbed_answer() {
    for (text, endpoint, body) in calls() {
        let (good, _) = world(text, &[with(None)]);
        let undisturbed = by_choice(said(&good, endpoint, body.clone()).await);
        assert_eq!(undisturbed.0, 200, "{:?}", undisturbed.1);
        let alone = good.last_trace();
        let choices = body["n"].as_u64().unwrap_or(1) as usize;
        let all = choices * (text.chars().count() + 1);
        for after in 0..=all {
            let how = if after % 2 == 0 { Leaves::Silently } else { Leaves::Saying };
            let (world, engines) = world(text, &[with(Some((after, how))), with(None)]);
            let heard = by_choice(said(&world, endpoint, body.clone()).await);
            let trace = world.last_trace();
            let (outcome, tries) = (&trace.outcome, &trace.attempts);
            assert_eq!(heard, undisturbed, "cut after {after}: {body} {outcome:?} {tries:?}");
            assert_eq!((trace.usage, trace.cost), (alone.usage, alone.cost), "cut after {after}: {body}");
            assert!(matches!(trace.outcome, CallOutcome::Completed { .. }), "{:?}", trace.outcome);
            assert!(is_partition(&trace.stages, trace.duration_ns), "{:?}", trace.stages);
            let outcomes: Vec<_> = trace.attempts.iter().map(|attempt| attempt.outcome.name()).collect();
            let open = all.saturating_sub(after).min(choices);
            let continues = if after == 0 { 1 } else { open };
            assert_eq!(outcomes[0], "failed", "{after}");
            assert!(outcomes[1..].iter().all(|name| *name == "answered"), "{outcomes:?}");
            assert_eq!(outcomes.len(), 1 + continues, "cut after {after}");
            assert_eq!(engines[1].jobs.lock().unwrap().len(), continues);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_move_more_than_once() {
    let (good, _) = world(TEXT, &[with(None)]);
    let body = chat(&json!({"stream": true, "n": 2}));
    let undisturbed = by_choice(said(&good, Endpoint::ChatCompletions, body.clone()).await);
    let leaving = |after| with(Some((after, Leaves::Saying)));
    let (world, _) = world(TEXT, &[leaving(9), leaving(3), with(None)]);
    assert_eq!(by_choice(said(&world, Endpoint::ChatCompletions, body).await), undisturbed);
    let trace = world.last_trace();
    assert_eq!(trace.usage, good.last_trace().usage);
    assert!(trace.attempts.iter().any(|attempt| &*attempt.worker == "w1"), "{:?}", trace.attempts);
    let [round] = &trace.rounds[..] else { panic!("a continued answer is one round: {:?}", trace.rounds) };
    assert_eq!((round.worker.as_deref(), round.usage), (Some("w2"), trace.usage));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_who_computes_the_same_goes_on() {
    use ResumeSupport::{Exactly, Likeliest, Never};
    let cold = json!({"temperature": 0});
    for (name, first, second, more, moves) in [
        (
            "the same bits",
            (Exactly, "a"),
            (Exactly, "a"),
            json!({"temperature": 1.2, "frequency_penalty": 1}),
            true,
        ),
        ("other bits", (Exactly, "a"), (Exactly, "b"), cold.clone(), false),
        ("servers of one kind", (Likeliest, "a"), (Likeliest, "b"), cold.clone(), true),
        ("by chance", (Likeliest, "a"), (Likeliest, "b"), json!({"temperature": 0.5}), false),
        (
            "penalties",
            (Likeliest, "a"),
            (Likeliest, "b"),
            json!({"temperature": 0, "presence_penalty": 1}),
            false,
        ),
        ("an engine here and a server", (Exactly, "a"), (Likeliest, "a"), cold.clone(), false),
        ("who never does", (Never, "a"), (Never, "a"), cold, false),
    ] {
        let leaves = Some((5, Leaves::Silently));
        let (world, engines) = world(TEXT, &[(first.0, first.1, leaves), (second.0, second.1, None)]);
        let mut body = chat(&more);
        body["stream"] = true.into();
        let (_, text) = said(&world, Endpoint::ChatCompletions, body).await;
        assert_eq!(text.contains("[DONE]") && !text.contains("engine_unavailable"), moves, "{name}: {text}");
        assert_eq!(engines[1].jobs.lock().unwrap().len(), usize::from(moves), "{name}");
        if !moves {
            let trace = world.last_trace();
            assert!(
                matches!(trace.attempts[..], [ref one] if matches!(one.outcome, AttemptOutcome::Failed { .. }))
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_worker_is_paid_for_what_it_computed() {
    // $1 per million prompt tokens, $0.10 if cached, $4 per million answer tokens.
    let costs = |upstreams: &[&str]| {
        let price = json!({"model": "theirs", "input": 1_000_000_000i64, "cached_input": 100_000_000i64,
            "output": 4_000_000_000i64});
        let cost = |name: &&str| CostConfig {
            upstream: (*name).to_owned(),
            price: serde_json::from_value(price.clone()).unwrap(),
        };
        Some(CostList::from_config(&upstreams.iter().map(cost).collect::<Vec<_>>()).unwrap())
    };
    let body = chat(&json!({"stream": true}));
    let all = TEXT.chars().count() as i64;
    let (alone, _) = world_of(TEXT, &[with(None)], OnBreak::Error, costs(&["w0"]), &[]);
    said(&alone, Endpoint::ChatCompletions, body.clone()).await;
    let record = alone.last_trace();
    let prompt = record.usage.prompt_tokens() as i64;
    let computed = |prompt: i64, generated: i64| (prompt - 3) * 1_000 + 3 * 100 + generated * 4_000;
    assert_eq!(record.paid.map(|paid| paid.get()), Some(computed(prompt, all)));
    assert_eq!(record.paid, Some(record.cost), "by one sheet, of an undisturbed answer");
    for how in [Leaves::Silently, Leaves::Saying] {
        let engines = [with(Some((5, how))), with(None)];
        let (world, _) = world_of(TEXT, &engines, OnBreak::Error, costs(&["w0", "w1"]), &[]);
        said(&world, Endpoint::ChatCompletions, body.clone()).await;
        let record = world.last_trace();
        let paid: Vec<_> = record.attempts.iter().map(|tried| tried.paid.unwrap().get()).collect();
        // The second worker reads what the first one had written, and writes the rest.
        assert_eq!(paid, [computed(prompt, 5), computed(prompt + 5, all - 5)], "{how:?}");
        assert_eq!(record.paid.map(|sum| sum.get()), Some(paid.iter().sum()));
        assert_eq!(record.cost, alone.last_trace().cost, "the caller pays once");
        let (world, _) = world_of(TEXT, &engines, OnBreak::Error, costs(&["w1"]), &[]);
        said(&world, Endpoint::ChatCompletions, body.clone()).await;
        let record = world.last_trace();
        assert_eq!((record.paid, record.attempts[0].paid), (None, None), "what is not known is no sum");
        assert_eq!(record.attempts[1].paid.map(|paid| paid.get()), Some(computed(prompt + 5, all - 5)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn by_policy_others_go_on_in_their_own_way_and_say_so() {
    use ResumeSupport::{Exactly, Likeliest, Never};
    let tokens = TEXT.chars().count() as u64;
    for (first, second, continues) in [
        ((Exactly, "a"), (Exactly, "b"), true),
        ((Likeliest, "a"), (Likeliest, "b"), true),
        ((Exactly, "a"), (Likeliest, "a"), true),
        ((Exactly, "a"), (Never, "b"), false),
    ] {
        for (stream, after) in [(true, 5), (true, 0), (false, 5), (true, tokens as usize)] {
            let leaves = Some((after, Leaves::Silently));
            let three = [(first.0, first.1, leaves), (Never, "c", None), (second.0, second.1, None)];
            let (world, engines) = world_where(TEXT, &three, OnBreak::Continue);
            let body = chat(
                &json!({"stream": stream, "temperature": 0.7, "stream_options": {"include_usage": true}}),
            );
            let body = if stream { body } else { chat(&json!({"temperature": 0.7})) };
            let answer = world.call(Endpoint::ChatCompletions, body).await;
            let header = header(&answer, "x-headrace-continued").map(str::to_owned);
            let (text, _) = read_to_the_end(answer).await;
            world.balance_when_idle().await;
            let (trace, asked) = (world.last_trace(), engines[2].jobs.lock().unwrap().len());
            let recorded: Vec<_> = trace
                .continued
                .iter()
                .map(|ContinuedAnswer { choice, after_tokens, worker }| (*choice, *after_tokens, &**worker))
                .collect();
            // Before any output this is an attempt like any other.
            if after == 0 {
                assert!(
                    text.contains("[DONE]") && recorded.is_empty() && !text.contains(": headrace"),
                    "{text}"
                );
                continue;
            }
            if !continues {
                assert!(text.contains("engine_unavailable") && recorded.is_empty() && asked == 0, "{text}");
                continue;
            }
            assert_eq!(recorded, [(0, after as u64, "w2")]);
            assert_eq!((trace.usage.output, trace.usage.prompt_tokens()), (tokens, trace.usage.input + 3));
            assert_eq!(trace.cost.get(), trace.usage.input as i64 * 1_000 + 300 + tokens as i64 * 4_000);
            assert!(trace.cost <= trace.held && trace.loss.get() == 0);
            assert!(matches!(trace.outcome, CallOutcome::Completed { .. }), "{:?}", trace.outcome);
            assert!(is_partition(&trace.stages, trace.duration_ns), "{:?}", trace.stages);
            // The head of a stream may have been sent by then.
            assert!(header.as_deref() == Some("1") || stream && header.is_none(), "{header:?}");
            if !stream {
                assert!(text.contains(TEXT), "{text}");
                continue;
            }
            let (before, behind) = text.split_once(": headrace: continued choice=0 after_tokens=").unwrap();
            assert!(behind.starts_with(&format!("{after}\n\n")), "{behind}");
            let said = |part: &str| -> String {
                let deltas = part.lines().filter_map(|line| line.strip_prefix("data: {"));
                let text = |line: &str| {
                    let event: Value = serde_json::from_str(&format!("{{{line}")).unwrap();
                    event["choices"][0]["delta"]["content"].as_str().unwrap_or_default().to_owned()
                };
                deltas.map(text).collect()
            };
            assert_eq!(said(before) + &said(behind), TEXT);
            assert!(behind.contains("[DONE]") && !said(before).is_empty(), "{behind}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_goes_on_as_the_lost_one_would_have_is_preferred() {
    let leaves = Some((5, Leaves::Silently));
    let of = |numerics: &'static str, leaves| (ResumeSupport::Exactly, numerics, leaves);
    let (world, engines) =
        world_where(TEXT, &[of("a", leaves), of("b", None), of("a", None)], OnBreak::Continue);
    let (status, text) = said(&world, Endpoint::ChatCompletions, chat(&json!({"stream": true}))).await;
    assert!(status == 200 && !text.contains(": headrace"), "{text}");
    assert!(world.last_trace().continued.is_empty());
    let asked = |at: usize| engines[at].jobs.lock().unwrap().len();
    assert_eq!((asked(1), asked(2)), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_goes_on_only_where_its_call_may_be_worked_on() {
    let eu = || Residency::only([Region::new("eu").unwrap()]);
    let leaves = with(Some((5, Leaves::Silently)));
    let body = chat(&json!({"stream": true}));
    let (good, _) = world(TEXT, &[with(None)]);
    let undisturbed = by_choice(said(&good, Endpoint::ChatCompletions, body.clone()).await);
    let ways = [OnBreak::Error, OnBreak::Continue];
    let rows = [(["eu", "us", "eu"], true), (["eu", "us", "ch"], false)];
    for ((regions, continues), way) in rows.into_iter().flat_map(|row| ways.map(|way| (row, way))) {
        let three = [leaves, with(None), with(None)];
        let (world, engines) = world_of(TEXT, &three, way, None, &regions);
        world.directory.set_org_regions(&world.org, eu(), "test", world.clock.now()).unwrap();
        let heard = by_choice(said(&world, Endpoint::ChatCompletions, body.clone()).await);
        let jobs: Vec<_> = engines.iter().map(|engine| engine.jobs.lock().unwrap().len()).collect();
        assert_eq!(jobs, [1, 0, usize::from(continues)], "{regions:?}");
        assert_eq!(heard == undisturbed, continues, "{heard:?}");
        if !continues {
            assert!(matches!(world.last_trace().outcome, CallOutcome::Failed { .. }), "{heard:?}");
        }
    }
}
