//! The place of a cache miss in the caller's own words. Of two conversations that differ in one thing, the explanation
//! of the second one names exactly that thing, in either dialect.

use headrace_domain::{CacheMiss, Endpoint, MissReason};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::world::{MODEL, Setup, World, read, trace_of};

/// The longest token of the demo model, in characters. Two prompts may part that many characters before they differ.
const LONGEST_TOKEN: usize = 15;

#[derive(Debug, Clone)]
enum Turn {
    User(String),
    Assistant(String),
    /// The assistant calls a tool with this argument, and receives this result together with this text.
    Called {
        argument: String,
        result: String,
        then: String,
    },
}

#[derive(Debug, Clone)]
struct Talk {
    system: Option<String>,
    turns: Vec<Turn>,
    /// Names and descriptions.
    tools: Vec<(String, String)>,
}

/// A change to a conversation. The numbers are taken modulo the count of what can be changed.
#[derive(Debug, Clone, Copy)]
enum Change {
    Text { which: usize, character: usize },
    ToolName(usize),
    ToolText(usize),
    AddTool(usize),
    RemoveTool(usize),
}

impl Talk {
    /// The conversation as a body of the endpoint.
    fn body(&self, endpoint: Endpoint) -> Value {
        let tools: Vec<Value> = self.tools.iter().map(|(name, about)| tool(endpoint, name, about)).collect();
        let mut body = json!({"model": MODEL, "max_tokens": 2, "messages": self.messages(endpoint)});
        if !tools.is_empty() {
            body["tools"] = tools.into();
        }
        if let (Endpoint::Messages, Some(system)) = (endpoint, &self.system) {
            body["system"] = system.as_str().into();
        }
        body
    }

    fn messages(&self, endpoint: Endpoint) -> Vec<Value> {
        let anthropic = endpoint == Endpoint::Messages;
        let mut messages = Vec::new();
        if let (false, Some(system)) = (anthropic, &self.system) {
            messages.push(json!({"role": "system", "content": system}));
        }
        for (number, turn) in self.turns.iter().enumerate() {
            // Each call has an id of its own.
            let id = format!("t{number}");
            match turn {
                Turn::User(text) => messages.push(json!({"role": "user", "content": text})),
                Turn::Assistant(text) => messages.push(json!({"role": "assistant", "content": text})),
                Turn::Called { argument, result, then } if anthropic => {
                    let (input, id) = (json!({"city": argument}), format!("t{}", messages.len()));
                    messages.extend([
                        json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "t", "input": input}]}),
                        json!({"role": "user", "content": [
                            {"type": "tool_result", "tool_use_id": id, "content": result}, {"type": "text", "text": then}]}),
                    ]);
                }
                Turn::Called { argument, result, then } => {
                    let arguments = json!({"city": argument}).to_string();
                    let function = json!({"name": "t", "arguments": arguments});
                    messages.extend([
                        json!({"role": "assistant", "content": null,
                            "tool_calls": [{"id": id, "type": "function", "function": function}]}),
                        json!({"role": "tool", "tool_call_id": id, "content": result}),
                        json!({"role": "user", "content": then}),
                    ]);
                }
            }
        }
        messages.push(json!({"role": "user", "content": "go on"}));
        messages
    }

    /// Every text, and its place in the caller's terms.
    fn texts(&mut self, endpoint: Endpoint) -> Vec<(&mut String, Value)> {
        let anthropic = endpoint == Endpoint::Messages;
        let mut texts = Vec::new();
        let mut index = 0;
        if let Some(system) = &mut self.system {
            texts.push((
                system,
                if anthropic { json!({"in": "system"}) } else { json!({"in": "message", "index": 0}) },
            ));
            index = usize::from(!anthropic);
        }
        for turn in &mut self.turns {
            match turn {
                Turn::User(text) | Turn::Assistant(text) => {
                    texts.push((text, json!({"in": "message", "index": index})));
                    index += 1;
                }
                Turn::Called { argument, result, then } => {
                    texts.push((argument, json!({"in": "tool_call", "index": index, "call": 0})));
                    let of = |block: usize| match anthropic {
                        true => json!({"in": "message", "index": index + 1, "block": block}),
                        false => json!({"in": "message", "index": index + 1 + block}),
                    };
                    texts.extend([(result, of(0)), (then, of(1))]);
                    index += if anthropic { 2 } else { 3 };
                }
            }
        }
        texts
    }

    /// Changes one thing. Returns the place that must be named, and the character in it. `None` if there is no such
    /// thing.
    fn change(&mut self, change: Change, endpoint: Endpoint) -> Option<(Value, Option<usize>)> {
        let count = self.tools.len();
        let tool = |index: usize| (json!({"in": "tool", "index": index}), None);
        match change {
            Change::Text { which, character } => {
                let mut texts = self.texts(endpoint);
                let which = which.checked_rem(texts.len())?;
                let (text, place) = texts.swap_remove(which);
                let at = character % text.chars().count();
                let changed = |(index, c)| {
                    if index != at {
                        c
                    } else if c == 'Z' {
                        'Y'
                    } else {
                        'Z'
                    }
                };
                *text = text.chars().enumerate().map(changed).collect();
                let character = (place["in"] != "tool_call").then_some(at);
                Some((place, character))
            }
            Change::ToolName(which) => {
                let which = which.checked_rem(count)?;
                self.tools[which].0.insert(1, 'Z');
                Some(tool(which))
            }
            Change::ToolText(which) => {
                let which = which.checked_rem(count)?;
                self.tools[which].1.insert(1, 'Z');
                Some(tool(which))
            }
            Change::AddTool(at) => {
                let at = at % (count + 1);
                self.tools.insert(at, ("Zoo".to_owned(), "Lists animals.".to_owned()));
                // The first tool brings the list with it.
                Some(if count == 0 { (json!({"in": "tools"}), None) } else { tool(at) })
            }
            Change::RemoveTool(which) => {
                let which = which.checked_rem(count)?;
                self.tools.remove(which);
                Some(match which {
                    // No part of the list remains to be named.
                    _ if count == 1 => {
                        let before = usize::from(endpoint != Endpoint::Messages && self.system.is_some());
                        (json!({"in": "template", "before_message": before}), None)
                    }
                    last if last + 1 == count => (json!({"in": "tools"}), None),
                    which => tool(which),
                })
            }
        }
    }
}

fn tool(endpoint: Endpoint, name: &str, about: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    if endpoint == Endpoint::Messages {
        return json!({"name": name, "description": about, "input_schema": schema});
    }
    json!({"type": "function", "function": {"name": name, "description": about, "parameters": schema}})
}

fn any_text() -> impl Strategy<Value = String> {
    // Words of the template, masked text, characters of several bytes, white space at both ends.
    "[ a]{0,1}[b-h](user|system|tool|<\\||<tool_call>|[a-z]{1,6}| |\n|é|模|😀|\"|\\{|\\.){0,10}"
}

fn any_talk() -> impl Strategy<Value = Talk> {
    let turn = prop_oneof![
        (any_text(), any_text()).prop_map(|(a, b)| vec![Turn::User(a), Turn::Assistant(b)]),
        (any_text(), any_text(), any_text()).prop_map(|(argument, result, then)| vec![
            Turn::User("u".into()),
            Turn::Called { argument, result, then }
        ]),
    ];
    let tools = proptest::sample::subsequence(vec!["alarm", "bank", "clock"], 0..=3);
    let tools = (tools, any_text(), any_text(), any_text())
        .prop_map(|(names, a, b, c)| names.into_iter().map(str::to_owned).zip([a, b, c]).collect::<Vec<_>>());
    (proptest::option::of(any_text()), proptest::collection::vec(turn, 1..3), tools)
        .prop_map(|(system, turns, tools)| Talk { system, turns: turns.concat(), tools })
}

fn any_change() -> impl Strategy<Value = Change> {
    let text = (any::<usize>(), any::<usize>());
    prop_oneof![
        3 => text.prop_map(|(which, character)| Change::Text { which, character }),
        1 => any::<usize>().prop_map(Change::ToolName),
        1 => any::<usize>().prop_map(Change::ToolText),
        1 => any::<usize>().prop_map(Change::AddTool),
        1 => any::<usize>().prop_map(Change::RemoveTool),
    ]
}

/// The place reported for a call whose most similar cached prompt is that of `cached`.
async fn place_told(world: &World, endpoint: Endpoint, cached: &Talk, asked: &Talk) -> Option<Value> {
    let mut prompts = Vec::new();
    for talk in [cached, asked] {
        let answer = world.call(endpoint, talk.body(endpoint)).await;
        let (status, text) = (answer.status, read(answer).await);
        assert_eq!(status, 200, "{text}");
        prompts.push(world.engine.jobs.lock().unwrap().pop().unwrap().prompt);
    }
    let token = prompts[0].iter().zip(prompts[1].iter()).take_while(|(a, b)| a == b).count();
    let other = prompts[0].get(token).copied();
    prompts[1].get(token)?;
    let miss =
        CacheMiss { reason: MissReason::Differs, token: token as u32, elsewhere: false, place: None, other };
    *world.engine.miss.lock().unwrap() = Some(miss);
    let answer = world.call(endpoint, asked.body(endpoint)).await;
    *world.engine.miss.lock().unwrap() = None;
    let trace = trace_of(world, answer).await;
    let recorded = trace.engine.as_ref().unwrap().miss.unwrap();
    assert_eq!(recorded.other, None, "a piece of a prompt is not kept");
    Some(serde_json::to_value(recorded.place).unwrap())
}

#[test]
fn a_change_of_one_thing_is_told_as_that_thing() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let world = runtime.block_on(async { World::new(Setup::default()) });
    let strategy = (any_talk(), any_change(), any::<bool>());
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    let checked = runner.run(&strategy, |(cached, change, anthropic)| {
        let endpoint = if anthropic { Endpoint::Messages } else { Endpoint::ChatCompletions };
        let mut asked = cached.clone();
        let Some((mut expected, character)) = asked.change(change, endpoint) else { return Ok(()) };
        let Some(told) = runtime.block_on(place_told(&world, endpoint, &cached, &asked)) else {
            return Ok(());
        };
        if let Some(at) = character {
            let told = told["character"].as_u64().map(|at| at as usize);
            let near = told.is_some_and(|told| told <= at && at - told <= LONGEST_TOKEN);
            prop_assert!(near, "character {:?} is told for {}", told, at);
            expected["character"] = told.into();
        }
        prop_assert_eq!(told, expected);
        Ok(())
    });
    checked.unwrap();
}
