//! What a run is asked to be, and which askings make no sense. Knows no command line: a fault names the flag by which
//! the program takes the value, so that whoever typed it finds it.

use std::fmt;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::{Length, Pause, Slo, TraceCall, show_duration};

/// Calls in flight at once, unless told otherwise.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 1_024;
/// Most calls in flight that may be asked for: each is a connection, and a process has a bounded number of them.
pub const MAX_IN_FLIGHT: usize = 65_536;
/// Most calls that wait for one of those places; an arrival beyond is counted as not sent.
pub const MAX_WAITING: usize = 100_000;
/// Most users of a closed loop.
pub const MAX_USERS: u32 = 65_536;
/// Highest rate of an open loop, in arrivals per second.
pub const MAX_RATE: f64 = 1e6;
/// Most calls of one conversation.
pub const MAX_TURNS: u32 = 10_000;
/// Longest that a call may take, unless told otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest that a call may be allowed to take.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Everything about a run. Serializes to what a reader needs to repeat it; the key is left out.
#[derive(Debug, Clone, Serialize)]
pub struct Config {
    /// The server, such as `http://127.0.0.1:8080`, with or without `/v1`.
    pub url: String,
    /// Its API key.
    #[serde(skip)]
    pub key: Option<SecretString>,
    /// The authorities to trust instead of this machine's, as PEM.
    #[serde(skip)]
    pub ca_pem: Option<Vec<u8>>,
    /// The model to ask; without one, the first that the server lists.
    pub model: Option<String>,
    /// Which endpoint.
    pub api: Api,
    /// Ask for streams. Without, there is no TTFT and no inter-token latency.
    pub stream: bool,
    /// Temperature sent with each call; 0 is greedy.
    pub temperature: f32,
    /// Send `ignore_eos`, so that answers have the planned length; only servers that know it take it.
    pub ignore_eos: bool,
    /// Fields to add to each call's body; `null` leaves one of ours out.
    pub body: Map<String, Value>,
    /// Where calls come from.
    pub load: Load,
    /// When it ends.
    pub stop: Stop,
    /// What is sent first and not measured.
    pub warmup: Warmup,
    /// Most calls in flight at once.
    pub max_in_flight: usize,
    /// Longest that one call may take.
    #[serde(serialize_with = "duration")]
    pub timeout: Duration,
    /// What the calls look like; not used in a replay.
    pub shape: Shape,
    /// The plan is a function of this.
    pub seed: u64,
    /// The words of the prompts are a function of this: a run that repeats it may find its prompts in the server's
    /// prefix cache.
    pub text_seed: u64,
    /// Tokens of a word, where they shall not be measured.
    pub tokens_per_word: Option<f64>,
    /// What counts as good.
    pub slo: Option<Slo>,
    /// Keep a trace of the run in the report.
    #[serde(skip)]
    pub record: bool,
    /// When it begins, for the report alone, in milliseconds since 1970.
    #[serde(skip)]
    pub started_unix_ms: Option<u64>,
}

/// Which endpoint is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Api {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`: a text without a template.
    Completions,
}

/// Where calls come from.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// Closed loop: each user sends the next call when the last has ended.
    Closed {
        /// How many.
        users: u32,
        /// How long a user pauses after an answer.
        think: Pause,
    },
    /// Open loop: calls arrive whatever the answers do.
    Open {
        /// Arrivals per second: calls, or conversations where they have several.
        rate: f64,
        /// How they are spread.
        arrivals: Arrivals,
    },
    /// Open loop at the times of a recorded trace.
    Replay {
        /// What was recorded.
        #[serde(serialize_with = "number_of", rename = "recorded_calls")]
        calls: Vec<TraceCall>,
        /// How many times as fast.
        speed: f64,
    },
}

/// How arrivals are spread over time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// One by one, independent of each other.
    Poisson,
    /// In groups of so many at the same moment; the groups come as a Poisson process.
    Bursts(u32),
    /// Gaps of a gamma distribution of this shape: 1 is Poisson, less comes in clusters, more is more even.
    Gamma(f64),
}

/// When sending ends; whichever comes first. Without either, a replay ends with its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Stop {
    /// Measured calls.
    pub requests: Option<u64>,
    /// Since measuring began. Calls in flight are waited for.
    #[serde(serialize_with = "maybe_duration")]
    pub duration: Option<Duration>,
}

/// What is sent first and not measured. It has the same shape and goes over into the measured part without a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmup {
    /// The first so many calls.
    Calls(u64),
    /// Calls due in the first so long.
    #[serde(serialize_with = "duration")]
    Time(Duration),
}

/// What calls look like.
#[derive(Debug, Clone, Serialize)]
pub struct Shape {
    /// Tokens of a conversation's first prompt as the server counts them, a shared prefix included.
    pub prompt: Length,
    /// Most tokens of an answer (`max_tokens`).
    pub output: Length,
    /// A beginning that prompts have in common.
    pub prefix: Option<SharedPrefix>,
    /// How conversations go on.
    pub turns: Turns,
    /// Tokens that each later call adds: the next message of a user, the result of a tool.
    pub turn_tokens: Length,
}

/// A beginning that prompts have in common.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SharedPrefix {
    /// How long it is, in tokens.
    pub tokens: u32,
    /// How many different ones there are; a conversation draws one.
    pub groups: u32,
    /// Which part of the conversations begins with one, 0 to 1.
    pub share: f64,
}

/// How a conversation goes on after an answer. The answers in it are the server's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Turns {
    /// Not at all.
    Single,
    /// A user asks on: so many calls in all.
    Chat(u32),
    /// An agent works on: so many calls after the first, each with a tool's result and without a pause.
    Agent {
        /// Calls after the first.
        hops: u32,
        /// How results are sent.
        role: AgentRole,
    },
}

impl Turns {
    /// Calls of one conversation.
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
    /// As a user's message: every model's template takes that.
    User,
    /// As OpenAI has it: the answer becomes a tool call, the result a message of the role `tool`.
    Tool,
}

/// A value that makes no run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The flag by which the program takes it.
    pub flag: &'static str,
    /// What is wrong and what would be right.
    pub why: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.flag, self.why)
    }
}

impl Config {
    /// One user against a server, for 30 s, with prompts of 128 tokens and answers of 64.
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
            load: Load::Closed { users: 1, think: Pause::NONE },
            stop: Stop { requests: None, duration: Some(Duration::from_secs(30)) },
            warmup: Warmup::Calls(0),
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            timeout: DEFAULT_TIMEOUT,
            shape: Shape {
                prompt: Length::constant(128),
                output: Length::constant(64),
                prefix: None,
                turns: Turns::Single,
                turn_tokens: Length::constant(64),
            },
            seed: 1,
            text_seed: 1,
            tokens_per_word: None,
            slo: None,
            record: false,
            started_unix_ms: None,
        }
    }

    /// Every fault of the values, at once.
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Faults(Vec::new());
        self.load_faults(&mut faults);
        self.shape_faults(&mut faults);
        let Stop { requests, duration } = self.stop;
        let replay = matches!(self.load, Load::Replay { .. });
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

    fn load_faults(&self, faults: &mut Faults) {
        match &self.load {
            Load::Closed { users, .. } => {
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
            Load::Open { rate, arrivals } => {
                faults.unless(*rate > 0.0 && *rate <= MAX_RATE, "--rate", || {
                    format!("it must be above 0 and at most {MAX_RATE} per second")
                });
                match arrivals {
                    Arrivals::Poisson => {}
                    Arrivals::Bursts(size) => {
                        faults.unless(*size > 0, "--burst", || "it must be at least 1".into());
                    }
                    Arrivals::Gamma(shape) => {
                        faults.unless((0.01..=1000.0).contains(shape), "--burstiness", || {
                            "it must lie between 0.01 (clusters) and 1000 (even); 1 is Poisson".into()
                        });
                    }
                }
            }
            Load::Replay { calls, speed } => {
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

    fn shape_faults(&self, faults: &mut Faults) {
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
            Turns::Single => return,
            Turns::Chat(_) => ("--turns", 1),
            Turns::Agent { .. } => ("--agent-hops", 1),
        };
        let calls = self.shape.turns.calls();
        faults.unless((fewest..=MAX_TURNS).contains(&calls), flag, || {
            format!("a conversation has between 1 and {MAX_TURNS} calls")
        });
        let tool = matches!(self.shape.turns, Turns::Agent { role: AgentRole::Tool, .. });
        faults.unless(!tool || self.api == Api::Chat, "--agent-role", || {
            "completions know no roles: use --api chat, or --agent-role user".into()
        });
    }
}

struct Faults(Vec<Fault>);

impl Faults {
    fn unless(&mut self, right: bool, flag: &'static str, why: impl FnOnce() -> String) {
        if !right {
            self.0.push(Fault { flag, why: why() });
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

    /// Each row spoils one value of a good configuration.
    #[test]
    fn every_fault_names_its_flag_and_the_way_out() {
        let open = |rate, arrivals| Load::Open { rate, arrivals };
        let replay = |calls, speed| Load::Replay { calls, speed };
        let call = TraceCall { messages: Some(Vec::new()), ..TraceCall::default() };
        let prefix = |tokens, groups, share| Some(SharedPrefix { tokens, groups, share });
        type Spoil = Box<dyn Fn(&mut Config)>;
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
                Box::new(|c| c.load = Load::Closed { users: 2_000, think: Pause::NONE }),
                "--users",
                "--max-in-flight",
            ),
            (Box::new(move |c| c.load = open(0.0, Arrivals::Poisson)), "--rate", "above 0"),
            (Box::new(move |c| c.load = open(f64::NAN, Arrivals::Poisson)), "--rate", "above 0"),
            (Box::new(move |c| c.load = open(1.0, Arrivals::Bursts(0))), "--burst", "at least"),
            (Box::new(move |c| c.load = open(1.0, Arrivals::Gamma(0.0))), "--burstiness", "Poisson"),
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
            (Box::new(|c| c.shape.turns = Turns::Chat(0)), "--turns", "between"),
            (
                Box::new(|c| {
                    c.api = Api::Completions;
                    c.shape.turns = Turns::Agent { hops: 2, role: AgentRole::Tool };
                }),
                "--agent-role",
                "--api chat",
            ),
        ];
        assert_eq!(Config::new("http://h").faults(), []);
        for (spoil, flag, part) in rows {
            let mut config = Config::new("http://h");
            spoil(&mut config);
            let faults = config.faults();
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].flag == flag && faults[0].why.contains(part), "{flag}: {}", faults[0]);
        }
    }

    #[test]
    fn all_faults_come_at_once() {
        let mut config = Config::new("http://h");
        config.stop.requests = Some(0);
        config.max_in_flight = 0;
        let flags: Vec<&str> = config.faults().iter().map(|fault| fault.flag).collect();
        assert_eq!(flags, ["--requests", "--max-in-flight"]);
    }

    #[test]
    fn the_key_is_never_written() {
        let config = Config { key: Some("sk-very-secret".into()), ..Config::new("http://h") };
        let written = serde_json::to_string(&config).unwrap();
        assert!(!written.contains("secret") && !format!("{config:?}").contains("very-secret"), "{written}");
    }
}
