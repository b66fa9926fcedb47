//! Rules that ask judges on other servers: nothing leaves before its verdict, a judge without a verdict counts as its
//! settings say, and a late verdict ends an answer.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_domain::{CallOutcome, ContentPlace, ContentVerdict, Endpoint, NanoDollars};
use headrace_moderation::{
    JudgeAnswer, JudgeFailure, JudgeFuture, JudgesByName, PassageJudge, RuleConfig, WithoutVerdict,
};
use serde_json::{Value, json};

use crate::screened::{LANES, Lane, body_of, end_of, judged_world, rules, script_of, seen};
use crate::world::{MODEL, Script, Setup, World, read};

const TEXT: &str = "Keep this. The secret is out. Bye.";

/// How a judge answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JudgeBehaviour {
    /// Finds texts with `secret` unfit.
    Secret,
    /// Finds every text unfit, once [`TestJudge::release`] was called.
    Late,
    Fails,
    Never,
}

#[derive(Debug)]
struct TestJudge {
    answers: JudgeBehaviour,
    without: WithoutVerdict,
    deadline: Duration,
    asked: Mutex<Vec<String>>,
    released: tokio::sync::watch::Sender<bool>,
}

impl TestJudge {
    fn new(answers: JudgeBehaviour, without: WithoutVerdict) -> Arc<Self> {
        let millis = if answers == JudgeBehaviour::Never { 20 } else { 60_000 };
        let (asked, released) = (Mutex::default(), tokio::sync::watch::Sender::new(false));
        Arc::new(Self { answers, without, deadline: Duration::from_millis(millis), asked, released })
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }

    fn by_name(self: &Arc<Self>) -> JudgesByName {
        JudgesByName::from([("guard".to_owned(), Arc::clone(self) as Arc<dyn PassageJudge>)])
    }
}

impl PassageJudge for TestJudge {
    fn ask(&self, text: String) -> JudgeFuture {
        self.asked.lock().unwrap().push(text.clone());
        let (answers, mut released) = (self.answers, self.released.subscribe());
        Box::pin(async move {
            // The verdict comes in a later turn of the event loop.
            tokio::task::yield_now().await;
            match answers {
                JudgeBehaviour::Secret => {
                    let cost = Some(NanoDollars::new(5));
                    Ok(JudgeAnswer { is_unfit: text.contains("secret"), cost })
                }
                JudgeBehaviour::Late => {
                    released.wait_for(|released| *released).await.unwrap();
                    Ok(true.into())
                }
                JudgeBehaviour::Fails => Err(JudgeFailure { why: "it is down".to_owned() }),
                JudgeBehaviour::Never => std::future::pending().await,
            }
        })
    }

    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn without_verdict(&self) -> WithoutVerdict {
        self.without
    }
}

fn guard(more: Value) -> Vec<RuleConfig> {
    let mut rule = json!({"name": "guarded", "kind": "judge", "judge": "guard", "action": "block", "applies_to": "output",
        "message": "Not here."});
    rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    rules(&json!([rule]))
}

fn verdict_in(place: ContentPlace, action: &str) -> ContentVerdict {
    ContentVerdict {
        rule: "guarded".to_owned(),
        action: action.to_owned(),
        kind: Some("judge".into()),
        place: Some(place),
        dry_run: None,
    }
}

fn verdict(action: &str) -> ContentVerdict {
    verdict_in(ContentPlace::Answer, action)
}

#[tokio::test]
async fn nothing_leaves_before_its_verdict_in_any_backend_and_dialect() {
    let splits: [&[&str]; 3] = [
        &[TEXT],
        &["Keep this.", " The sec", "ret is out.", " Bye."],
        &["Keep", " this", ". ", "T", "h", "e secret is out", ". B", "ye", "."],
    ];
    for (lane, endpoints) in LANES {
        for &endpoint in endpoints {
            for stream in [true, false] {
                for pieces in splits {
                    let judge = TestJudge::new(JudgeBehaviour::Secret, WithoutVerdict::Block);
                    let script = script_of(lane, endpoint, stream, pieces);
                    let ruled = (guard(json!({})), judge.by_name());
                    let (world, model, _) = judged_world(lane, ruled, script, TEXT);
                    let what = format!("{lane:?} {endpoint:?} stream={stream} {pieces:?}");
                    let body = read(world.call(endpoint, body_of(endpoint, model, stream)).await).await;
                    let expected = ("Keep this. ".to_owned(), end_of(endpoint, true).to_owned());
                    assert_eq!(seen(endpoint, stream, &body), expected, "{what}: {body}");
                    assert!(!body.contains("secre") && !body.contains("The"), "{what}: {body}");
                    let asked = judge.asked();
                    // The judge sees each passage once, with the text before it.
                    assert_eq!(asked[..2], ["Keep this. ", "Keep this. The secret is out. "], "{what}");
                    assert!(asked.len() <= 3, "{what}: {asked:?}");
                    world.balance_when_idle().await;
                    let record = world.last_trace();
                    assert_eq!(record.output_verdicts, [verdict("block")], "{what}");
                    let [used] = record.judge_uses.as_slice() else { panic!("{what}: {record:?}") };
                    assert_eq!((used.rule.as_str(), used.judge.as_str()), ("guarded", "guard"), "{what}");
                    assert_eq!((used.place, used.waits), (ContentPlace::Answer, true), "{what}");
                    let questions = u32::try_from(asked.len()).unwrap();
                    assert_eq!((used.questions, used.without_verdict), (questions, 0), "{what}");
                    assert_eq!(used.cost, Some(NanoDollars::new(5 * i64::from(questions))), "{what}");
                    let finish = CallOutcome::Completed { finish: vec!["content_filter".to_owned()] };
                    assert_eq!(record.outcome, finish, "{what}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_judge_without_a_verdict_counts_as_its_settings_say() {
    for answers in [JudgeBehaviour::Fails, JudgeBehaviour::Never] {
        for without in [WithoutVerdict::Block, WithoutVerdict::Pass] {
            for stream in [true, false] {
                let judge = TestJudge::new(answers, without);
                let ruled = (guard(json!({"applies_to": "answer"})), judge.by_name());
                let (world, model, _) = judged_world(Lane::Engine, ruled, Vec::new(), TEXT);
                let chat = Endpoint::ChatCompletions;
                let body = read(world.call(chat, body_of(chat, model, stream)).await).await;
                let blocks = without == WithoutVerdict::Block;
                let text = if blocks { "" } else { TEXT };
                let expected = (text.to_owned(), end_of(chat, blocks).to_owned());
                assert_eq!(seen(chat, stream, &body), expected, "{answers:?} {without:?} {stream}: {body}");
                world.balance_when_idle().await;
                let record = world.last_trace();
                assert!(record.output_verdicts.contains(&verdict("no_verdict")), "{record:?}");
                assert_eq!(record.output_verdicts.contains(&verdict("block")), blocks, "{record:?}");
            }
        }
    }
}

#[tokio::test]
async fn tool_calls_are_judged_whole() {
    const CALL: &str =
        "so: <tool_call>\n{\"name\": \"t\", \"arguments\": {\"a\": \"the secret plan\"}}\n</tool_call>";
    let tools = json!([{"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}]);
    for stream in [true, false] {
        let judge = TestJudge::new(JudgeBehaviour::Secret, WithoutVerdict::Block);
        let ruled = (guard(json!({"applies_to": "tool_calls"})), judge.by_name());
        let (world, model, _) = judged_world(Lane::Engine, ruled, Vec::new(), CALL);
        let mut body = body_of(Endpoint::ChatCompletions, model, stream);
        body["tools"] = tools.clone();
        let body = read(world.call(Endpoint::ChatCompletions, body).await).await;
        assert!(!body.contains("plan") && body.contains("content_filter"), "{body}");
        let asked = judge.asked();
        assert!(
            asked.len() == 1 && asked[0].starts_with("\nt {") && asked[0].contains("secret plan"),
            "{asked:?}"
        );
        world.balance_when_idle().await;
        let record = world.last_trace();
        assert_eq!(record.output_verdicts, [verdict_in(ContentPlace::ToolCalls, "block")], "{record:?}");
    }
}

#[tokio::test]
async fn a_late_verdict_ends_a_running_answer() {
    let judge = TestJudge::new(JudgeBehaviour::Late, WithoutVerdict::Block);
    let rules = guard(json!({"mode": "async"}));
    let world = World::new(Setup { rules, judges: judge.by_name(), ..Setup::default() });
    // It sends 4,000 bytes at once, and then waits until it is cancelled.
    world.script(Script::ThenWait(40));
    let chat = Endpoint::ChatCompletions;
    let answer = world.call(chat, body_of(chat, MODEL, true)).await;
    let reading = tokio::spawn(read(answer));
    let asked = async {
        loop {
            match judge.asked().len() {
                0 => tokio::time::sleep(Duration::from_millis(5)).await,
                asked => break asked,
            }
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap() >= 1);
    judge.released.send_replace(true);
    let (text, end) = seen(chat, true, &reading.await.unwrap());
    assert_eq!((text.len(), end.as_str()), (4000, "content_filter"), "no text waited for the judge");
    world.balance_when_idle().await;
    assert_eq!(*world.engine.cancelled.lock().unwrap(), 1);
    assert_eq!(world.last_trace().output_verdicts, [verdict("block")]);
}

#[tokio::test]
async fn what_callers_send_is_judged_before_anything_is_held() {
    let chat = Endpoint::ChatCompletions;
    let ask = |text: &str| json!({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}]});
    for (answers, without, text, expected) in [
        (JudgeBehaviour::Secret, WithoutVerdict::Block, "my secret", 400),
        (JudgeBehaviour::Secret, WithoutVerdict::Block, "hello", 200),
        (JudgeBehaviour::Fails, WithoutVerdict::Block, "hello", 400),
        (JudgeBehaviour::Fails, WithoutVerdict::Pass, "hello", 200),
        (JudgeBehaviour::Never, WithoutVerdict::Block, "hello", 400),
        (JudgeBehaviour::Never, WithoutVerdict::Pass, "hello", 200),
    ] {
        let judge = TestJudge::new(answers, without);
        let rules = guard(json!({"applies_to": "input"}));
        let world = World::new(Setup { rules, judges: judge.by_name(), ..Setup::default() });
        let before = world.balance_when_idle().await;
        let answer = world.call(chat, ask(text)).await;
        assert_eq!(answer.status, expected, "{answers:?} {without:?} {text}");
        let body = read(answer).await;
        assert_eq!(judge.asked(), [format!("{text}\n")]);
        let after = world.balance_when_idle().await;
        if expected == 400 {
            assert!(
                body.contains("content_policy") && body.contains("Not here. (content rule `guarded`)"),
                "{body}"
            );
            assert_eq!(before, after);
            assert_eq!(world.last_trace().moderation.as_deref(), Some("guarded"));
        }
        let record = world.last_trace();
        let mut expected_verdicts = Vec::new();
        if expected == 400 {
            expected_verdicts.push(verdict_in(ContentPlace::Input, "block"));
        }
        if answers != JudgeBehaviour::Secret {
            expected_verdicts.push(verdict_in(ContentPlace::Input, "no_verdict"));
        }
        assert_eq!(record.input_verdicts, expected_verdicts, "{answers:?} {without:?} {text}");
        assert!(record.output_verdicts.is_empty(), "{answers:?} {without:?} {text}: {record:?}");
        let [used] = record.judge_uses.as_slice() else { panic!("{record:?}") };
        assert_eq!((used.place, used.questions), (ContentPlace::Input, 1));
        assert_eq!(used.passes_without, without == WithoutVerdict::Pass);
        assert_eq!(used.without_verdict, u32::from(answers != JudgeBehaviour::Secret));
    }
}

#[tokio::test]
async fn a_long_prompt_is_judged_in_parts() {
    let judge = TestJudge::new(JudgeBehaviour::Secret, WithoutVerdict::Block);
    let rules = guard(json!({"applies_to": "input"}));
    let world = World::new(Setup { rules, judges: judge.by_name(), ..Setup::default() });
    let text = format!("{}secret", "\u{e9}".repeat(40_000));
    let body = json!({"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}]});
    let answer = world.call(Endpoint::ChatCompletions, body).await;
    let status = answer.status;
    read(answer).await;
    let asked = judge.asked();
    if status == 400 && asked.is_empty() {
        // The prompt is too long for the model, which is found first.
        return;
    }
    assert_eq!(status, 400);
    assert_eq!(asked.concat().replace('\n', ""), text);
    assert!(asked.iter().all(|part| part.len() <= (32 << 10) + 1), "parts of 32 KiB");
}
