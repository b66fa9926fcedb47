//! A seeded world in virtual time: independent gateways, the servers that all of them use, and callers. It collects the
//! numbers that the tests assert.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use headrace_domain::{BlockKey, CacheSalt, Clock, ManualClock, ModelName, PrefixKeys, Residency};
use headrace_engine_api::{Capabilities, ResumeSupport};
use headrace_fleet::{FailureKind, Fleet, Placement, TriedWorkers, Worker, WorkerOutcome, WorkerSite};

use crate::random::Random;
use crate::server::{Death, MS, Remote, SECOND, Server};

/// The parameters of a world.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) gateways: usize,
    pub(crate) servers: usize,
    /// Interval of load reports. `None` if there are none.
    pub(crate) report_every_ns: Option<u64>,
    /// Mean interval of single calls; `decode_ns` is their mean decode time.
    pub(crate) arrivals_every_ns: Option<u64>,
    pub(crate) decode_ns: u64,
    /// Number of parallel conversations. Each one starts anew when it is over.
    pub(crate) conversations: usize,
    /// A server, how it dies, when, and when it comes back.
    pub(crate) death: Option<(usize, Death, u64, u64)>,
    /// Interval of the gateways' health probes. `None` if there are none.
    pub(crate) probe_every_ns: Option<u64>,
    pub(crate) until_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Report(usize),
    Sample,
    Arrival,
    Turn(usize),
    First(usize),
    End(usize),
    Lost(usize),
    Dies,
    IsBack,
    Probe,
}

struct Call {
    gateway: usize,
    server: usize,
    placement: Option<Placement>,
    tried: TriedWorkers,
    keys: PrefixKeys,
    decode_ns: u64,
    tokens: u64,
    /// The server's number of deaths when it accepted the call.
    life: u32,
    began: bool,
    conversation: Option<usize>,
}

struct Conversation {
    ids: Vec<u32>,
    turns: u64,
}

/// Measurements of a run.
#[derive(Default)]
pub(crate) struct Seen {
    /// For each sample, the busiest server's calls over the mean.
    pub(crate) herding: Vec<f64>,
    pub(crate) hit_blocks: usize,
    pub(crate) ideal_blocks: usize,
    /// When calls other than trials were sent to the dying server, from its death on.
    pub(crate) sent_to_dead_ns: Vec<u64>,
    pub(crate) trials_ns: Vec<u64>,
    pub(crate) most_trials_at_once: usize,
    /// When the server answered calls after it came back.
    pub(crate) answered_back_ns: Vec<u64>,
    /// Calls without output that found no worker, or no retry in the budget.
    pub(crate) failed: usize,
    pub(crate) calls: usize,
    pub(crate) by_server: Vec<u64>,
}

pub(crate) struct World {
    plan: Plan,
    clock: Arc<ManualClock>,
    random: Random,
    model: ModelName,
    salt: CacheSalt,
    servers: Vec<Arc<Mutex<Server>>>,
    fleets: Vec<Fleet>,
    calls: Vec<Call>,
    conversations: Vec<Conversation>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
    /// All blocks that were ever computed by any server.
    computed: HashSet<BlockKey>,
    trials: HashMap<usize, ()>,
    seen: Seen,
}

/// System prompt tokens, shared by all agents of a kind.
const SYSTEM_TOKENS: u32 = 2000;
const SYSTEMS: u64 = 3;

impl World {
    pub(crate) fn run(plan: &Plan) -> Seen {
        let mut world = Self::new(plan.clone());
        world.begin();
        while let Some(Reverse((at_ns, _, event))) = world.events.pop() {
            if at_ns > world.plan.until_ns {
                break;
            }
            let passed = at_ns - world.now_ns();
            world.clock.advance(Duration::from_nanos(passed));
            world.happen(event);
        }
        world.seen.by_server = world.servers.iter().map(|server| server.lock().unwrap().calls).collect();
        world.seen
    }

    fn new(plan: Plan) -> Self {
        let clock = Arc::new(ManualClock::default());
        let model = ModelName::new("m").unwrap();
        let servers: Vec<_> =
            (0..plan.servers).map(|_| Arc::new(Mutex::new(Server::new(MS, 16_384)))).collect();
        let capabilities = Capabilities {
            model: "m".into(),
            compute_mode: "exact".into(),
            numerics: String::new(),
            vocab: 1 << 20,
            context_window: 1 << 20,
            max_logprobs: 0,
            kv_tokens: 16_384 * 16,
            continues: ResumeSupport::Never,
            grammars: false,
            thought_caps: false,
            forms: headrace_engine_api::FormKinds::NONE,
            short_context: None,
        };
        let worker = |(at, server): (usize, &Arc<Mutex<Server>>)| {
            let (server, clock) = (Arc::clone(server), Arc::clone(&clock));
            let (capabilities, reports) = (capabilities.clone(), plan.report_every_ns.is_some());
            let engine = Arc::new(Remote { server, clock, capabilities, reports });
            Worker::new(&at.to_string(), model.clone(), engine)
                .at(&Arc::new(WorkerSite::new(&at.to_string())))
        };
        let fleet = |gateway: u64| {
            let clock = Arc::clone(&clock) as Arc<dyn Clock>;
            Fleet::with(servers.iter().enumerate().map(worker), clock, plan.seed ^ gateway << 32)
        };
        let fleets = (0..plan.gateways as u64).map(fleet).collect();
        Self {
            random: Random::new(plan.seed),
            salt: CacheSalt::derive(&[7; 32], "t", "m", None),
            plan,
            clock,
            model,
            servers,
            fleets,
            calls: Vec::new(),
            conversations: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            computed: HashSet::new(),
            trials: HashMap::new(),
            seen: Seen::default(),
        }
    }

    fn now_ns(&self) -> u64 {
        self.clock.monotonic_nanos()
    }

    fn after(&mut self, ns: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((self.now_ns() + ns, self.number, event)));
    }

    fn begin(&mut self) {
        let every = self.plan.report_every_ns;
        for server in 0..self.plan.servers {
            if let Some(every) = every {
                self.after(every * server as u64 / self.plan.servers as u64, Event::Report(server));
            }
        }
        if self.plan.arrivals_every_ns.is_some() {
            self.after(0, Event::Arrival);
        }
        for conversation in 0..self.plan.conversations {
            self.conversations.push(Conversation { ids: Vec::new(), turns: 0 });
            let wait = self.random.below(10 * SECOND);
            self.after(wait, Event::Turn(conversation));
        }
        if let Some((_, _, dies_ns, back_ns)) = self.plan.death {
            self.after(dies_ns, Event::Dies);
            self.after(back_ns, Event::IsBack);
        }
        if let Some(every) = self.plan.probe_every_ns {
            self.after(every, Event::Probe);
        }
        self.after(20 * SECOND, Event::Sample);
    }

    fn happen(&mut self, event: Event) {
        let now_ns = self.now_ns();
        match event {
            Event::Report(server) => {
                self.servers[server].lock().unwrap().report(now_ns);
                self.after(self.plan.report_every_ns.unwrap(), Event::Report(server));
            }
            Event::Sample => self.sample(),
            Event::Arrival => {
                let wait = self.random.exponential_ns(self.plan.arrivals_every_ns.unwrap());
                self.after(wait, Event::Arrival);
                // Random prompts, which are never cached.
                let (len, own) = (16 * (1 + self.random.below(16)), self.random.next() as u32);
                self.call((0..len as u32).map(|at| own.wrapping_add(at)).collect(), None);
            }
            Event::Turn(conversation) => self.turn(conversation),
            Event::First(call) => self.first(call),
            Event::End(call) => self.end(call),
            Event::Lost(call) => self.lost(call, FailureKind::Timeout),
            Event::Dies => self.dies(),
            Event::Probe => self.probe(),
            Event::IsBack => {
                let (server, ..) = self.plan.death.unwrap();
                self.servers[server].lock().unwrap().death = None;
            }
        }
    }

    fn sample(&mut self) {
        let loads: Vec<f64> =
            self.servers.iter().map(|server| f64::from(server.lock().unwrap().in_flight())).collect();
        let mean = loads.iter().sum::<f64>() / loads.len() as f64;
        self.seen.herding.push(loads.iter().copied().fold(0.0, f64::max) / mean.max(1.0));
        self.after(100 * MS, Event::Sample);
    }

    /// The next turn of an agent: the conversation so far, and some more tokens.
    fn turn(&mut self, at: usize) {
        let conversation = &mut self.conversations[at];
        if conversation.turns == 0 {
            let system = self.random.below(SYSTEMS) as u32;
            conversation.turns = 6 + self.random.below(10);
            conversation.ids = (0..SYSTEM_TOKENS).map(|token| system * SYSTEM_TOKENS + token).collect();
        }
        conversation.turns -= 1;
        let (more, own) = (200 + self.random.below(400), self.random.next() as u32 | 1 << 31);
        conversation.ids.extend((0..more as u32).map(|token| own.wrapping_add(token) | 1 << 31));
        let ids = conversation.ids.clone();
        self.call(ids, Some(at));
    }

    fn call(&mut self, ids: Vec<u32>, conversation: Option<usize>) {
        let keys = PrefixKeys::of(&self.salt, &ids.into());
        let ideal = keys.keys().iter().take_while(|key| self.computed.contains(*key)).count();
        self.seen.ideal_blocks += ideal;
        self.computed.extend(keys.keys());
        self.seen.calls += 1;
        let gateway = self.random.below(self.plan.gateways as u64) as usize;
        let decode_ns = self.random.exponential_ns(self.plan.decode_ns);
        let (placement, tried) = (None, TriedWorkers::default());
        let call = Call {
            gateway,
            server: 0,
            placement,
            tried,
            keys,
            decode_ns,
            tokens: 0,
            life: 0,
            began: false,
            conversation,
        };
        self.calls.push(call);
        self.send(self.calls.len() - 1);
    }

    fn send(&mut self, at: usize) {
        let now_ns = self.now_ns();
        let call = &mut self.calls[at];
        let placed =
            self.fleets[call.gateway].place(&self.model, &call.keys, &call.tried, &Residency::Anywhere);
        let Some(placement) = placed else {
            self.seen.failed += 1;
            return self.over(at);
        };
        call.server = placement.worker_id().parse().unwrap();
        let is_trial = placement.is_trial();
        call.placement = Some(placement);
        let died_ns = self.plan.death.filter(|death| death.0 == call.server).map(|death| death.2);
        if died_ns.is_some_and(|died_ns| now_ns >= died_ns) {
            match is_trial {
                true => self.seen.trials_ns.push(now_ns),
                false => self.seen.sent_to_dead_ns.push(now_ns),
            }
        }
        if is_trial {
            self.trials.insert(at, ());
            let of_one =
                self.trials.keys().filter(|&&other| self.calls[other].server == self.calls[at].server);
            self.seen.most_trials_at_once = self.seen.most_trials_at_once.max(of_one.count());
        }
        let call = &mut self.calls[at];
        let mut server = self.servers[call.server].lock().unwrap();
        call.life = server.deaths;
        match server.death {
            Some(Death::Refuses) => {
                drop(server);
                self.lost(at, FailureKind::Connect);
            }
            Some(Death::Hangs { timeout_ns }) => {
                drop(server);
                self.after(timeout_ns, Event::Lost(at));
            }
            None => {
                let taken = server.take(now_ns, &call.keys);
                drop(server);
                call.tokens = taken.tokens;
                self.seen.hit_blocks += taken.hit_blocks;
                self.after(taken.first_ns - now_ns, Event::First(at));
            }
        }
    }

    /// Whether the server has died since it accepted the call.
    fn is_orphan(&self, at: usize) -> bool {
        let call = &self.calls[at];
        self.servers[call.server].lock().unwrap().deaths != call.life
    }

    fn first(&mut self, at: usize) {
        if self.is_orphan(at) {
            return;
        }
        let call = &mut self.calls[at];
        let Some(placement) = call.placement.as_mut() else { return };
        placement.began();
        call.began = true;
        self.trials.remove(&at);
        self.servers[call.server].lock().unwrap().began(call.tokens);
        let decode_ns = call.decode_ns;
        self.after(decode_ns, Event::End(at));
    }

    fn end(&mut self, at: usize) {
        if self.is_orphan(at) {
            return;
        }
        let now_ns = self.now_ns();
        let call = &mut self.calls[at];
        let Some(mut placement) = call.placement.take() else { return };
        placement.ended(&WorkerOutcome::Answered);
        self.servers[call.server].lock().unwrap().ended();
        let back_ns = self.plan.death.filter(|death| death.0 == call.server).map(|death| death.3);
        if back_ns.is_some_and(|back_ns| now_ns >= back_ns) {
            self.seen.answered_back_ns.push(now_ns);
        }
        self.over(at);
    }

    /// Handles a lost call. A call without output goes to another worker.
    fn lost(&mut self, at: usize, failure: FailureKind) {
        self.trials.remove(&at);
        let call = &mut self.calls[at];
        let Some(mut placement) = call.placement.take() else { return };
        placement.ended(&WorkerOutcome::Failed { failure, why: "it is dead".to_owned() });
        call.tried.add(placement);
        if call.began {
            return self.over(at);
        }
        if !self.fleets[call.gateway].try_take_retry(&self.model) {
            self.seen.failed += 1;
            return self.over(at);
        }
        self.send(at);
    }

    fn dies(&mut self) {
        let (server, death, ..) = self.plan.death.unwrap();
        self.servers[server].lock().unwrap().die(death);
        for at in 0..self.calls.len() {
            if self.calls[at].server == server && self.calls[at].placement.is_some() {
                match death {
                    Death::Refuses => self.lost(at, FailureKind::Broke),
                    Death::Hangs { timeout_ns } => self.after(timeout_ns, Event::Lost(at)),
                }
            }
        }
    }

    fn probe(&mut self) {
        for fleet in &self.fleets {
            for worker in fleet.workers() {
                let server: usize = worker.id().parse().unwrap();
                let answer = match self.servers[server].lock().unwrap().death {
                    None => Ok(()),
                    Some(_) => Err("no answer to a probe"),
                };
                fleet.probed(worker.site().unwrap(), answer);
            }
        }
        self.after(self.plan.probe_every_ns.unwrap(), Event::Probe);
    }

    fn over(&mut self, at: usize) {
        if let Some(conversation) = self.calls[at].conversation {
            let wait = SECOND + self.random.below(2 * SECOND);
            self.after(wait, Event::Turn(conversation));
        }
    }
}
