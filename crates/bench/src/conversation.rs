//! The content of the calls: prompts of words with the planned number of tokens, conversations that grow by the
//! server's real answers, and their JSON. Knows no connection.

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::random::{RandomStream, RunRandom};
use crate::trace::HASH_BLOCK_TOKENS;
use crate::words::deal;
use crate::{AgentRole, Api, BenchConfig, ConversationTurns, PlannedCall, PlannedSession, TokenizerGauge};

/// Writes the bodies of a run's calls.
#[derive(Debug)]
pub(crate) struct CallWriter {
    model: String,
    api: Api,
    stream: bool,
    temperature: f32,
    ignore_eos: bool,
    /// Fields that the user adds. Our fields with the same names are left out.
    extra: Map<String, Value>,
    left_out: Vec<String>,
    role: AgentRole,
    text_seed: u64,
    pub(crate) gauge: TokenizerGauge,
}

/// The conversation so far.
#[derive(Debug)]
pub(crate) enum BenchConversation {
    Messages(Vec<BenchMessage>),
    Text(String),
}

/// A message of a conversation.
#[derive(Debug, Serialize)]
pub(crate) struct BenchMessage {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<String>,
}

#[derive(Serialize)]
struct RequestBody<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<BodyMessages<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ignore_eos: Option<bool>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum BodyMessages<'a> {
    Made(&'a [BenchMessage]),
    Given(&'a [Box<RawValue>]),
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl CallWriter {
    pub(crate) fn new(config: &BenchConfig, model: String, gauge: TokenizerGauge) -> Self {
        let mut extra = config.body.clone();
        let left_out = extra.keys().cloned().collect();
        extra.retain(|_, value| !value.is_null());
        Self {
            model,
            api: config.api,
            stream: config.stream,
            temperature: config.temperature,
            ignore_eos: config.ignore_eos,
            extra,
            left_out,
            role: match config.shape.turns {
                ConversationTurns::Agent { role, .. } => role,
                ConversationTurns::Single | ConversationTurns::Chat(_) => AgentRole::User,
            },
            text_seed: config.text_seed,
            gauge,
        }
    }

    /// The start of a conversation.
    pub(crate) fn begin(&self, session: &PlannedSession, call: &PlannedCall) -> BenchConversation {
        let text = self.prompt(session, call);
        match self.api {
            Api::Chat => BenchConversation::Messages(vec![said("user", text)]),
            Api::Completions => BenchConversation::Text(text),
        }
    }

    /// Adds the received answer and the next input of `call` to the conversation.
    pub(crate) fn go_on(&self, conversation: &mut BenchConversation, answer: &str, call: &PlannedCall) {
        let words = self.gauge.words(f64::from(call.tokens));
        let mut text = String::new();
        deal(RunRandom::new(self.text_seed, RandomStream::OwnText, call.index), words, &mut text);
        match conversation {
            BenchConversation::Text(whole) => {
                whole.push_str(answer);
                whole.push('\n');
                whole.push_str(&text);
            }
            BenchConversation::Messages(messages) if self.role == AgentRole::Tool => {
                let id = format!("call_{}", call.index);
                let function = json!({"name": "look_up", "arguments": "{}"});
                messages.push(BenchMessage {
                    tool_calls: Some(json!([{"id": &id, "type": "function", "function": function}])),
                    ..said("assistant", answer.to_owned())
                });
                messages.push(BenchMessage { tool_call_id: Some(id), ..said("tool", text) });
            }
            BenchConversation::Messages(messages) => {
                // Some servers refuse a message without text.
                let answer = if answer.is_empty() { "…" } else { answer };
                messages.push(said("assistant", answer.to_owned()));
                messages.push(said("user", text));
            }
        }
    }

    fn prompt(&self, session: &PlannedSession, call: &PlannedCall) -> String {
        let overhead = self.gauge.overhead_tokens;
        let mut text = String::new();
        let mut write = |stream, index, tokens| {
            let random = RunRandom::new(self.text_seed, stream, index);
            deal(random, self.gauge.words(tokens), &mut text);
        };
        if let Some(blocks) = &call.blocks {
            let mut left = call.tokens;
            for block in blocks.iter() {
                if left == 0 {
                    break;
                }
                write(RandomStream::BlockText, *block, f64::from(left.min(HASH_BLOCK_TOKENS)));
                left = left.saturating_sub(HASH_BLOCK_TOKENS);
            }
            return text;
        }
        // Tokens before the prompt's own words: the template's start and the shared prefix.
        let mut before = overhead;
        if let Some(prefix) = session.prefix {
            write(RandomStream::PrefixText, prefix.group, f64::from(prefix.tokens) - overhead);
            before = before.max(f64::from(prefix.tokens));
        }
        write(RandomStream::OwnText, call.index, f64::from(call.tokens) - before);
        text
    }

    /// The body of a call: the conversation, unless the call has its own messages.
    pub(crate) fn body(&self, conversation: &BenchConversation, call: &PlannedCall) -> Vec<u8> {
        let (messages, prompt) = match (&call.messages, conversation) {
            (Some(given), _) => (Some(BodyMessages::Given(given)), None),
            (None, BenchConversation::Messages(made)) => (Some(BodyMessages::Made(made)), None),
            (None, BenchConversation::Text(text)) => (None, Some(text.as_str())),
        };
        self.write(messages, prompt, call.output, self.stream)
    }

    /// The body of a call with `words` words that asks for one token.
    pub(crate) fn probe(&self, words: u64) -> Vec<u8> {
        let mut text = String::new();
        deal(RunRandom::new(self.text_seed, RandomStream::ProbeText, 0), words, &mut text);
        let chat = [said("user", text.clone())];
        match self.api {
            Api::Chat => self.write(Some(BodyMessages::Made(&chat)), None, Some(1), false),
            Api::Completions => self.write(None, Some(&text), Some(1), false),
        }
    }

    /// The text of a probe, for servers with a separate tokenizer endpoint.
    pub(crate) fn probe_text(&self, words: u64) -> String {
        let mut text = String::new();
        deal(RunRandom::new(self.text_seed, RandomStream::ProbeText, 0), words, &mut text);
        text
    }

    fn write(
        &self,
        messages: Option<BodyMessages<'_>>,
        prompt: Option<&str>,
        output: Option<u32>,
        stream: bool,
    ) -> Vec<u8> {
        let ours = |name: &str| !self.left_out.iter().any(|left_out| left_out == name);
        let body = RequestBody {
            model: &self.model,
            messages,
            prompt,
            max_tokens: output.filter(|_| ours("max_tokens")),
            temperature: Some(self.temperature).filter(|_| ours("temperature")),
            stream,
            stream_options: (stream && ours("stream_options"))
                .then_some(StreamOptions { include_usage: true }),
            ignore_eos: (self.ignore_eos && ours("ignore_eos")).then_some(true),
            extra: &self.extra,
        };
        // Strings, numbers and parsed JSON: nothing in the body can fail to serialize.
        serde_json::to_vec(&body).unwrap_or_default()
    }
}

fn said(role: &'static str, content: String) -> BenchMessage {
    BenchMessage { role, content, tool_calls: None, tool_call_id: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RunPlan, SharedPrefix};

    const GAUGE: TokenizerGauge =
        TokenizerGauge { tokens_per_word: 2.0, overhead_tokens: 10.0, source: "usage" };

    fn writer(config: &BenchConfig) -> CallWriter {
        CallWriter::new(config, "m".into(), GAUGE)
    }

    fn text(conversation: &BenchConversation) -> &str {
        match conversation {
            BenchConversation::Text(text) => text,
            BenchConversation::Messages(messages) => &messages[0].content,
        }
    }

    fn words(text: &str) -> usize {
        text.split_whitespace().count()
    }

    #[test]
    fn prompts_have_the_planned_length_and_prefixes_are_shared() {
        let mut config = BenchConfig::new("http://h");
        config.shape.prefix = Some(SharedPrefix { tokens: 90, groups: 1, share: 1.0 });
        let writer = writer(&config);
        let sessions: Vec<PlannedSession> = RunPlan::new(&config).sessions().take(2).collect();
        let texts: Vec<BenchConversation> =
            sessions.iter().map(|session| writer.begin(session, &session.calls[0])).collect();
        // (128 − 10) / 2 words. (90 − 10) / 2 of them are shared.
        assert_eq!(words(text(&texts[0])), 59);
        let common: Vec<_> =
            text(&texts[0]).split(' ').zip(text(&texts[1]).split(' ')).take_while(|(a, b)| a == b).collect();
        assert_eq!(common.len(), 40);
        config.shape.prefix = None;
        let own = writer.begin(&RunPlan::new(&config).sessions().next().unwrap(), &sessions[0].calls[0]);
        assert_eq!(words(text(&own)), 59);
    }

    #[test]
    fn equal_blocks_of_a_trace_are_equal_text() {
        let config = BenchConfig::new("http://h");
        let writer = writer(&config);
        let session = RunPlan::new(&config).sessions().next().unwrap();
        let call = |blocks: &[u64], tokens| PlannedCall {
            tokens,
            blocks: Some(std::sync::Arc::new(blocks.to_vec())),
            ..session.calls[0].clone()
        };
        let first = writer.begin(&session, &call(&[7, 8], 1_000));
        let second = writer.begin(&session, &call(&[7, 9], 600));
        assert_eq!((words(text(&first)), words(text(&second))), (256 + 244, 256 + 44));
        let same = text(&first).split(' ').zip(text(&second).split(' ')).take_while(|(a, b)| a == b).count();
        assert!((256..260).contains(&same), "{same}");
    }

    #[test]
    fn a_body_has_what_was_asked_for_and_nothing_else() {
        let mut config = BenchConfig::new("http://h");
        let session = RunPlan::new(&config).sessions().next().unwrap();
        let mut call = session.calls[0].clone();
        let body = |config: &BenchConfig, call: &PlannedCall| -> Value {
            let writer =
                CallWriter::new(config, "m".into(), TokenizerGauge { overhead_tokens: 126.0, ..GAUGE });
            serde_json::from_slice(&writer.body(&writer.begin(&session, call), call)).unwrap()
        };
        let chat = body(&config, &call);
        let content = chat["messages"][0]["content"].clone();
        assert!(content.is_string());
        assert_eq!(
            chat,
            json!({"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 64,
                "temperature": 0.0, "stream": true, "stream_options": {"include_usage": true}})
        );
        config.api = Api::Completions;
        config.stream = false;
        config.ignore_eos = true;
        config.temperature = 0.7;
        config.body = serde_json::from_str(r#"{"max_tokens":null,"top_k":1}"#).unwrap();
        assert_eq!(
            body(&config, &call).to_string(),
            json!({"model": "m", "prompt": content, "temperature": 0.7, "stream": false, "ignore_eos": true,
                "top_k": 1})
            .to_string()
        );
        let config = BenchConfig::new("http://h");
        call.messages =
            Some(vec![RawValue::from_string(r#"{"role":"user","x":1.0}"#.into()).unwrap()].into());
        call.output = None;
        let given = body(&config, &call);
        assert_eq!(
            (&given["messages"], given.get("max_tokens")),
            (&json!([{"role": "user", "x": 1.0}]), None)
        );
    }

    #[test]
    fn conversations_grow_by_real_answers() {
        let mut config = BenchConfig::new("http://h");
        config.shape.turns = ConversationTurns::Chat(2);
        let session = RunPlan::new(&config).sessions().next().unwrap();
        let grown = |config: &BenchConfig| {
            let writer = writer(config);
            let mut conversation = writer.begin(&session, &session.calls[0]);
            writer.go_on(&mut conversation, "Forty-two", &session.calls[1]);
            serde_json::from_slice::<Value>(&writer.body(&conversation, &session.calls[1])).unwrap()
        };
        let chat = grown(&config);
        let roles = |body: &Value| {
            let messages = body["messages"].as_array().unwrap();
            messages.iter().map(|message| message["role"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(roles(&chat), ["user", "assistant", "user"]);
        assert_eq!(chat["messages"][1]["content"], "Forty-two");
        assert_eq!(words(chat["messages"][2]["content"].as_str().unwrap()), 32);
        config.shape.turns = ConversationTurns::Agent { hops: 1, role: AgentRole::Tool };
        let agent = grown(&config);
        assert_eq!(roles(&agent), ["user", "assistant", "tool"]);
        assert_eq!(agent["messages"][1]["tool_calls"][0]["id"], agent["messages"][2]["tool_call_id"]);
        config.api = Api::Completions;
        config.shape.turns = ConversationTurns::Chat(2);
        assert!(grown(&config)["prompt"].as_str().unwrap().contains("Forty-two\n"));
    }
}
