//! The configuration of a run, and its validation. Knows no command line, but each fault names the flag that sets the
//! value, so that users find it.

use std::fmt;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{PauseLength, Slo, TokenLength, TraceCall, show_duration};

/// Default limit of calls in flight.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 1_024;
/// Maximum limit of calls in flight. Each call needs a connection, and a process has a bounded number of them.
pub const MAX_IN_FLIGHT: usize = 65_536;
/// Maximum calls that wait for a slot. Further arrivals are counted as not sent.
pub const MAX_WAITING: usize = 100_000;
/// Maximum users of a closed loop.
pub const MAX_USERS: u32 = 65_536;
/// Maximum rate of an open loop, in arrivals per second.
pub const MAX_RATE: f64 = 1e6;
/// Maximum calls of one conversation.
pub const MAX_TURNS: u32 = 10_000;
/// Default time limit of a call.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum time limit of a call.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The configuration of a run. Its serialized form is enough to repeat the run, except for the key.
#[derive(Debug, Clone, Serialize)]
pub struct BenchConfig {
    /// The server, such as `http://127.0.0.1:8080`, with or without `/v1`.
    pub url: String,
    /// The server's API key.
    #[serde(skip)]
    pub key: Option<SecretString>,
    /// PEM certificates of the authorities to trust instead of the system's.
    #[serde(skip)]
    pub ca_pem: Option<Vec<u8>>,
    /// The model to call. `None` selects the first model that the server lists for the endpoint.
    pub model: Option<String>,
    /// The endpoint to call.
    pub api: Api,
    /// Whether to request streams. Without streams there is no TTFT and no inter-token latency.
    pub stream: bool,
    /// Temperature of each call. 0 is greedy.
    pub temperature: f32,
    /// Whether to send `ignore_eos`, so that answers have the planned length. Only some servers support it.
    pub ignore_eos: bool,
    /// Fields to add to each call's body. `null` removes a field of ours.
    pub body: Map<String, Value>,
    /// The source of the calls.
    pub load: LoadShape,
    /// When the run ends.
    pub stop: StopRule,
    /// Calls at the start that are not measured.
    pub warmup: Warmup,
    /// Maximum calls in flight.
    pub max_in_flight: usize,
    /// Time limit of one call.
    #[serde(serialize_with = "duration")]
    pub timeout: Duration,
    /// The shape of the calls. Not used in a replay.
    pub shape: RequestShape,
    /// Seed of the plan, which is a pure function of it.
    pub seed: u64,
    /// Seed of the prompts' words. If a run repeats it, its prompts may be in the server's prefix cache.
    pub text_seed: u64,
    /// Tokens per word. `None` measures the value.
    pub tokens_per_word: Option<f64>,
    /// The service level objective, if any.
    pub slo: Option<Slo>,
    /// Whether to keep a trace of the run in the report.
    #[serde(skip)]
    pub record: bool,
    /// Start time in milliseconds since 1970. Used in the report only.
    #[serde(skip)]
    pub started_unix_ms: Option<u64>,
}

/// The endpoint to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`: text without a template.
    Completions,
}

/// The source of the calls.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadShape {
    /// Closed loop: each user sends the next call when the previous one has ended.
    Closed {
        /// Number of users.
        users: u32,
        /// Pause of a user after an answer.
        think: PauseLength,
    },
    /// Open loop: calls arrive independently of the answers.
    Open {
        /// Arrivals per second. An arrival is a call, or a conversation of several calls.
        rate: f64,
        /// The distribution of the arrivals.
        arrivals: ArrivalSpread,
    },
    /// Open loop with the arrival times of a recorded trace.
    Replay {
        /// The recorded calls.
        #[serde(serialize_with = "number_of", rename = "recorded_calls")]
        calls: Vec<TraceCall>,
        /// Speed factor. 2 is twice as fast.
        speed: f64,
    },
}

/// The distribution of arrivals over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalSpread {
    /// Single arrivals, independent of each other.
    Poisson,
    /// Groups of this many simultaneous arrivals. The groups form a Poisson process.
    Bursts(u32),
    /// Gaps from a gamma distribution with this shape: 1 is Poisson, less is more clustered, more is more even.
    Gamma(f64),
}

/// When sending ends: at the limit that is reached first. A replay without limits ends with its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StopRule {
    /// Maximum number of measured calls.
    pub requests: Option<u64>,
    /// Maximum time since measuring started. The run still waits for calls in flight.
    #[serde(serialize_with = "maybe_duration")]
    pub duration: Option<Duration>,
}

/// Calls at the start that are not measured. They have the same shape, and the measured calls follow without a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmup {
    /// The first calls, this many.
    Calls(u64),
    /// The calls due within this time.
    #[serde(serialize_with = "duration")]
    Time(Duration),
}

/// The shape of the calls.
#[derive(Debug, Clone, Serialize)]
pub struct RequestShape {
    /// Tokens of a conversation's first prompt as the server counts them, including a shared prefix.
    pub prompt: TokenLength,
    /// Maximum tokens of an answer (`max_tokens`).
    pub output: TokenLength,
    /// A prefix that prompts share.
    pub prefix: Option<SharedPrefix>,
    /// How conversations continue.
    pub turns: ConversationTurns,
    /// Tokens that each later call adds: the user's next message, or a tool's result.
    pub turn_tokens: TokenLength,
}

/// A prefix that prompts share.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SharedPrefix {
    /// Length of the prefix in tokens.
    pub tokens: u32,
    /// Number of different prefixes. Each conversation draws one.
    pub groups: u32,
    /// Share of the conversations that start with a prefix, from 0 to 1.
    pub share: f64,
}

/// How a conversation continues after an answer. The answers in it are the server's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConversationTurns {
    /// It does not continue.
    Single,
    /// The user asks again: this many calls in total.
    Chat(u32),
    /// An agent continues: this many calls after the first, each with a tool's result and without a pause.
    Agent {
        /// Number of calls after the first.
        hops: u32,
        /// How tool results are sent.
        role: AgentRole,
    },
}

impl ConversationTurns {
    /// Number of calls in one conversation.
    pub fn calls(self) -> u32 {
        match self {
            Self::Single => 1,
            Self::Chat(turns) => turns,
            Self::Agent { hops, .. } => hops.saturating_add(1),
        }
    }
}

/// How a tool's result is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRole {
    /// As a user's message, which every model's template accepts.
    User,
    /// In OpenAI's form: the answer becomes a tool call, and the result a message with the role `tool`.
    Tool,
}

/// An invalid value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// The flag that sets the value.
    pub flag: &'static str,
    /// What is wrong, and what would be valid.
    pub why: String,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.flag, self.why)
    }
}

impl BenchConfig {
    /// A configuration with one user against a server for 30 s, prompts of 128 tokens and answers of 64.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            key: None,
            ca_pem: None,
            model: None,
            api: Api::Chat,
            stream: true,
            temperature: 0.0,
            ignore_eos: false,
            body: Map::new(),
            load: LoadShape::Closed { users: 1, think: PauseLength::NONE },
            stop: StopRule { requests: None, duration: Some(Duration::from_secs(30)) },
            warmup: Warmup::Calls(0),
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            timeout: DEFAULT_TIMEOUT,
            shape: RequestShape {
                prompt: TokenLength::constant(128),
                output: TokenLength::constant(64),
                prefix: None,
                turns: ConversationTurns::Single,
                turn_tokens: TokenLength::constant(64),
            },
            seed: 1,
            text_seed: 1,
            tokens_per_word: None,
            slo: None,
            record: false,
            started_unix_ms: None,
        }
    }

    /// All invalid values.
    pub fn faults(&self) -> Vec<ConfigFault> {
        let mut faults = ConfigFaults(Vec::new());
        self.load_faults(&mut faults);
        self.shape_faults(&mut faults);
        let StopRule { requests, duration } = self.stop;
        let replay = matches!(self.load, LoadShape::Replay { .. });
        faults.unless(requests != Some(0), "--requests", || "it must be at least 1".into());
        faults.unless(duration != Some(Duration::ZERO), "--duration", || "it must be longer than 0s".into());
        faults.unless(replay || requests.is_some() || duration.is_some(), "--duration", || {
            "nothing would end the run: give --duration, --requests or both".into()
        });
        faults.unless((1..=MAX_IN_FLIGHT).contains(&self.max_in_flight), "--max-in-flight", || {
            format!("it must lie between 1 and {MAX_IN_FLIGHT}")
        });
        faults.unless(!self.timeout.is_zero() && self.timeout <= MAX_TIMEOUT, "--timeout", || {
            format!("it must be longer than 0s and at most {}", show_duration(MAX_TIMEOUT))
        });
        faults.unless((0.0..=2.0).contains(&self.temperature), "--temperature", || {
            "it must lie between 0 and 2".into()
        });
        let words = self.tokens_per_word.is_none_or(|tokens| (0.1..=100.0).contains(&tokens));
        faults.unless(words, "--tokens-per-word", || "it must lie between 0.1 and 100".into());
        let needs_stream = self.slo.is_some_and(|slo| slo.ttft.or(slo.itl).or(slo.gap).is_some());
        let owned = ["model", "messages", "prompt", "stream"];
        let taken: Vec<&str> = owned.into_iter().filter(|name| self.body.contains_key(*name)).collect();
        faults.unless(taken.is_empty(), "--body", || {
            format!(
                "`{}` is not for it: --model, --prompt-tokens and --no-stream say that",
                taken.join("`, `")
            )
        });
        faults.unless(self.stream || !needs_stream, "--slo", || {
            "without streams only e2e can be measured: bound that alone, or leave out --no-stream".into()
        });
        faults.0
    }

    fn load_faults(&self, faults: &mut ConfigFaults) {
        match &self.load {
            LoadShape::Closed { users, .. } => {
                faults.unless((1..=MAX_USERS).contains(users), "--users", || {
                    format!("it must lie between 1 and {MAX_USERS}")
                });
                let fit = usize::try_from(*users).is_ok_and(|users| users <= self.max_in_flight);
                faults.unless(fit || self.max_in_flight == 0, "--users", || {
                    format!(
                        "{users} users cannot have a call each while at most {} calls may be in flight: raise --max-in-flight",
                        self.max_in_flight
                    )
                });
            }
            LoadShape::Open { rate, arrivals } => {
                faults.unless(*rate > 0.0 && *rate <= MAX_RATE, "--rate", || {
                    format!("it must be above 0 and at most {MAX_RATE} per second")
                });
                match arrivals {
                    ArrivalSpread::Poisson => {}
                    ArrivalSpread::Bursts(size) => {
                        faults.unless(*size > 0, "--burst", || "it must be at least 1".into());
                    }
                    ArrivalSpread::Gamma(shape) => {
                        faults.unless((0.01..=1000.0).contains(shape), "--burstiness", || {
                            "it must lie between 0.01 (clusters) and 1000 (even); 1 is Poisson".into()
                        });
                    }
                }
            }
            LoadShape::Replay { calls, speed } => {
                faults.unless(!calls.is_empty(), "--replay", || "there is no call in it".into());
                faults.unless(*speed > 0.0 && *speed <= 1e6, "--replay-speed", || {
                    "it must be above 0 and at most 1000000; 2 is twice as fast".into()
                });
                let given = calls.iter().any(|call| call.messages.is_some());
                faults.unless(self.api == Api::Chat || !given, "--api", || {
                    "the trace has messages: only --api chat can send them".into()
                });
            }
        }
    }

    fn shape_faults(&self, faults: &mut ConfigFaults) {
        if let Some(prefix) = &self.shape.prefix {
            let least = self.shape.prompt.least();
            let constant = least > 1 && prefix.tokens >= least;
            faults.unless(prefix.tokens > 0, "--shared-prefix-tokens", || "it must be at least 1".into());
            faults.unless(!constant, "--shared-prefix-tokens", || {
                format!(
                    "it is part of --prompt-tokens, which can be as short as {least}: a prompt of {} tokens with {} shared ones would be --prompt-tokens {}",
                    u64::from(prefix.tokens) + 64,
                    prefix.tokens,
                    u64::from(prefix.tokens) + 64
                )
            });
            faults.unless(prefix.groups > 0, "--shared-prefix-groups", || "it must be at least 1".into());
            faults.unless((0.0..=1.0).contains(&prefix.share), "--shared-prefix-share", || {
                "it is a part of all conversations: between 0 and 1".into()
            });
        }
        let (flag, fewest) = match self.shape.turns {
            ConversationTurns::Single => return,
            ConversationTurns::Chat(_) => ("--turns", 1),
            ConversationTurns::Agent { .. } => ("--agent-hops", 1),
        };
        let calls = self.shape.turns.calls();
        faults.unless((fewest..=MAX_TURNS).contains(&calls), flag, || {
            format!("a conversation has between 1 and {MAX_TURNS} calls")
        });
        let tool = matches!(self.shape.turns, ConversationTurns::Agent { role: AgentRole::Tool, .. });
        faults.unless(!tool || self.api == Api::Chat, "--agent-role", || {
            "completions know no roles: use --api chat, or --agent-role user".into()
        });
    }
}

struct ConfigFaults(Vec<ConfigFault>);

impl ConfigFaults {
    fn unless(&mut self, right: bool, flag: &'static str, why: impl FnOnce() -> String) {
        if !right {
            self.0.push(ConfigFault { flag, why: why() });
        }
    }
}

fn duration<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&show_duration(*time))
}

fn maybe_duration<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(show_duration).serialize(serializer)
}

fn number_of<S: Serializer>(calls: &[TraceCall], serializer: S) -> Result<S::Ok, S::Error> {
    calls.len().serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each row breaks one value of a valid configuration.
    #[test]
    fn every_fault_names_its_flag_and_the_way_out() {
        let open = |rate, arrivals| LoadShape::Open { rate, arrivals };
        let replay = |calls, speed| LoadShape::Replay { calls, speed };
        let call = TraceCall { messages: Some(Vec::new()), ..TraceCall::default() };
        let prefix = |tokens, groups, share| Some(SharedPrefix { tokens, groups, share });
        type Spoil = Box<dyn Fn(&mut BenchConfig)>;
        let rows: Vec<(Spoil, &str, &str)> = vec![
            (Box::new(|c| c.stop.requests = Some(0)), "--requests", "at least 1"),
            (Box::new(|c| c.stop.duration = Some(Duration::ZERO)), "--duration", "longer"),
            (Box::new(|c| c.stop.duration = None), "--duration", "--requests"),
            (Box::new(|c| c.max_in_flight = 0), "--max-in-flight", "between"),
            (Box::new(|c| c.timeout = Duration::from_secs(3_601)), "--timeout", "3600s"),
            (Box::new(|c| c.temperature = f32::NAN), "--temperature", "between"),
            (Box::new(|c| c.tokens_per_word = Some(0.0)), "--tokens-per-word", "between"),
            (Box::new(|c| drop(c.body.insert("stream".into(), true.into()))), "--body", "--no-stream"),
            (
                Box::new(|c| {
                    c.stream = false;
                    c.slo = "ttft=1s".parse().ok();
                }),
                "--slo",
                "e2e",
            ),
            (
                Box::new(|c| c.load = LoadShape::Closed { users: 2_000, think: PauseLength::NONE }),
                "--users",
                "--max-in-flight",
            ),
            (Box::new(move |c| c.load = open(0.0, ArrivalSpread::Poisson)), "--rate", "above 0"),
            (Box::new(move |c| c.load = open(f64::NAN, ArrivalSpread::Poisson)), "--rate", "above 0"),
            (Box::new(move |c| c.load = open(1.0, ArrivalSpread::Bursts(0))), "--burst", "at least"),
            (Box::new(move |c| c.load = open(1.0, ArrivalSpread::Gamma(0.0))), "--burstiness", "Poisson"),
            (Box::new(move |c| c.load = replay(Vec::new(), 1.0)), "--replay", "no call"),
            (Box::new(move |c| c.load = replay(vec![TraceCall::default()], 0.0)), "--replay-speed", "above"),
            (
                Box::new(move |c| {
                    c.api = Api::Completions;
                    c.load = replay(vec![call.clone()], 1.0);
                }),
                "--api",
                "chat",
            ),
            (
                Box::new(move |c| c.shape.prefix = prefix(128, 1, 1.0)),
                "--shared-prefix-tokens",
                "--prompt-tokens 192",
            ),
            (Box::new(move |c| c.shape.prefix = prefix(0, 1, 1.0)), "--shared-prefix-tokens", "at least"),
            (Box::new(move |c| c.shape.prefix = prefix(64, 0, 1.0)), "--shared-prefix-groups", "at least"),
            (Box::new(move |c| c.shape.prefix = prefix(64, 1, 1.5)), "--shared-prefix-share", "between"),
            (Box::new(|c| c.shape.turns = ConversationTurns::Chat(0)), "--turns", "between"),
            (
                Box::new(|c| {
                    c.api = Api::Completions;
                    c.shape.turns = ConversationTurns::Agent { hops: 2, role: AgentRole::Tool };
                }),
                "--agent-role",
                "--api chat",
            ),
        ];
        assert_eq!(BenchConfig::new("http://h").faults(), []);
        for (spoil, flag, part) in rows {
            let mut config = BenchConfig::new("http://h");
            spoil(&mut config);
            let faults = config.faults();
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].flag == flag && faults[0].why.contains(part), "{flag}: {}", faults[0]);
        }
    }

    #[test]
    fn all_faults_come_at_once() {
        let mut config = BenchConfig::new("http://h");
        config.stop.requests = Some(0);
        config.max_in_flight = 0;
        let flags: Vec<&str> = config.faults().iter().map(|fault| fault.flag).collect();
        assert_eq!(flags, ["--requests", "--max-in-flight"]);
    }

    #[test]
    fn the_key_is_never_written() {
        let config = BenchConfig { key: Some("sk-very-secret".into()), ..BenchConfig::new("http://h") };
        let written = serde_json::to_string(&config).unwrap();
        assert!(!written.contains("secret") && !format!("{config:?}").contains("very-secret"), "{written}");
    }
}
