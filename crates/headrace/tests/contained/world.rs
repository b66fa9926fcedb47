//! A running program, a client that attacks it, and another organisation's client that must be served meanwhile.

use std::any::Any;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::common::{PATIENCE, Server, program};
use crate::upstream::Upstream;

/// Maximum growth of resident memory during an attack, in KiB.
const MAX_GROWTH_KIB: u64 = 256 * 1024;
/// Rounds of other callers' requests while the result of an attack is held open.
const HELD_ROUNDS: usize = 3;
/// Pause between rounds of other callers' requests. No assertion depends on it.
const PAUSE: Duration = Duration::from_millis(20);
/// Descriptors that this process needs to hold the clients of all rows open.
const CLIENT_DESCRIPTORS: u64 = 8192;

/// The keys, prices and listeners of every row.
const CONFIG: &str = r#"
[reload]
watch = "0s"
[first_start]
credit = "1000"
[[prices]]
model = "headrace-demo"
input = "0.20"
output = "0.40"
"#;

/// Text that says what is wrong.
pub(crate) type Fault = String;

/// Connections that stay open until other callers have been served once more.
pub(crate) type Held = Box<dyn Any + Send>;

/// What an attack returns.
pub(crate) type Attack = Result<Held, Fault>;

/// How a row starts the program.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Setup {
    /// An encoder of `crates/model/tests/data`, served as `encoder`.
    pub(crate) encoder: Option<&'static str>,
    /// Whether a scripted server answers as the upstream `up`.
    pub(crate) upstream: bool,
    /// Whether the program has an admin listener.
    pub(crate) admin: bool,
    /// Settings, as lines of a `[section]` each.
    pub(crate) settings: &'static str,
    /// The limit on the program's file descriptors.
    pub(crate) descriptors: Option<u32>,
}

/// The plain program with its demo model.
pub(crate) const PLAIN: Setup =
    Setup { encoder: None, upstream: false, admin: false, settings: "", descriptors: None };
/// The plain program with a scripted upstream.
pub(crate) const UPSTREAM: Setup = Setup { upstream: true, ..PLAIN };
/// The plain program with an admin listener.
pub(crate) const ADMIN: Setup = Setup { admin: true, ..PLAIN };

/// The plain program with an encoder.
pub(crate) const fn encoder(name: &'static str) -> Setup {
    Setup { encoder: Some(name), ..PLAIN }
}

/// The program, the attacker and another caller.
pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) http: reqwest::Client,
    /// The key of the attacking client. It has no limits of its own.
    pub(crate) attacker: String,
    /// The key of another organisation.
    pub(crate) other: String,
    /// The scripted upstream, if the row has one.
    pub(crate) upstream: Option<Upstream>,
    /// The address of the admin listener, if the row has one.
    pub(crate) admin: String,
    /// The base URL of the listener for metrics and health.
    operations: String,
    /// The peak of resident memory before the attack, in KiB.
    before_kib: AtomicU64,
    _root: tempfile::TempDir,
}

/// Plays a row: starts the program, attacks it, serves other callers meanwhile, and compares its peak of resident memory.
pub(crate) async fn play<F, A>(setup: Setup, attack: F)
where
    F: FnOnce(Arc<World>) -> A,
    A: Future<Output = Attack> + Send + 'static,
{
    let world = World::start(setup).await;
    world.others_are_served("before the attack").await.unwrap();
    world.begin();
    let running = tokio::spawn(attack(Arc::clone(&world)));
    while !running.is_finished() {
        if let Err(fault) = world.contained("during the attack").await {
            running.abort();
            panic!("{fault}");
        }
        tokio::time::sleep(PAUSE).await;
    }
    let held = running.await.unwrap().unwrap_or_else(|fault| panic!("{fault}"));
    for _ in 0..HELD_ROUNDS {
        world.contained("while its connections are open").await.unwrap();
    }
    drop(held);
    world.contained("after the attack").await.unwrap();
    println!("resident memory rose by {} MiB", world.growth_kib().unwrap() / 1024);
}

impl World {
    async fn start(setup: Setup) -> Arc<Self> {
        raise_descriptors();
        let root = tempfile::tempdir().unwrap();
        let upstream = if setup.upstream { Some(Upstream::start().await) } else { None };
        let mut text = "[server]\nmetrics_listen = \"127.0.0.1:0\"\n".to_owned();
        text += setup.settings;
        let mut admin = String::new();
        if setup.admin {
            admin = free_address();
            text += &format!("[admin]\nlisten = {admin:?}\n");
        }
        text += CONFIG;
        if let Some(name) = setup.encoder {
            let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data").join(name);
            text += &format!(
                "[[models]]\nname = \"headrace-demo\"\npath = \"builtin:demo\"\n\
                 [[models]]\nname = \"encoder\"\npath = {path:?}\n\
                 [[prices]]\nmodel = \"encoder\"\ninput = \"1\"\noutput = \"1\"\n"
            );
        }
        if let Some(upstream) = &upstream {
            let url = upstream.url();
            text += &format!(
                "[[upstreams]]\nname = \"up\"\nkind = \"openai\"\nurl = {url:?}\nserve = true\n\
                 price = {{ input = \"1\", output = \"2\" }}\n"
            );
        }
        let server = serve(root.path().join("headrace.toml"), &text, &root.path().join("data"), setup);
        let metrics = server.welcome.lines().find_map(|line| line.trim().strip_prefix("metrics"));
        let operations = metrics.unwrap().trim().trim_end_matches("/metrics").to_owned();
        server.ok(&["orgs", "create", "other"]);
        server.ok(&["projects", "create", "others", "--org", "other"]);
        server.ok(&["credit", "grant", "50", "--org", "other"]);
        let attacker = key(&server, &[]);
        let other = key(&server, &["--project", "others"]);
        let http = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).timeout(PATIENCE);
        Arc::new(Self {
            server,
            http: http.build().unwrap(),
            attacker,
            other,
            upstream,
            admin,
            operations,
            before_kib: AtomicU64::new(0),
            _root: root,
        })
    }

    /// Compares later peaks with the present one, for attacks that first store something large.
    pub(crate) fn begin(&self) {
        self.before_kib.store(self.peak_kib().unwrap(), Ordering::Relaxed);
    }

    /// A key of the attacker's organisation with these limits.
    pub(crate) fn key(&self, limits: &[&str]) -> String {
        key(&self.server, limits)
    }

    /// Checks that memory stayed within the bound and that other callers are served.
    async fn contained(&self, when: &str) -> Result<(), Fault> {
        self.memory_is_bounded(when)?;
        self.others_are_served(when).await?;
        self.memory_is_bounded(when)
    }

    fn memory_is_bounded(&self, when: &str) -> Result<(), Fault> {
        let peak = self.peak_kib().ok_or_else(|| format!("{when}: the program has ended"))?;
        let before = self.before_kib.load(Ordering::Relaxed);
        if peak <= before + MAX_GROWTH_KIB {
            return Ok(());
        }
        Err(format!(
            "{when}: resident memory rose from {} to {} MiB, more than {} MiB",
            before / 1024,
            peak / 1024,
            MAX_GROWTH_KIB / 1024
        ))
    }

    /// Checks that a call of another organisation is answered, and that the program reports that it is ready.
    async fn others_are_served(&self, when: &str) -> Result<(), Fault> {
        let asked = json!({"model": "headrace-demo", "prompt": "hi", "max_tokens": 4});
        let (status, body) = self.post(&self.other, "/v1/completions", &asked).await;
        if status != 200 {
            return Err(format!("{when}: another caller gets {status} {body}"));
        }
        let asked = self.http.get(format!("{}/readyz", self.operations)).send().await;
        match asked.map(|answer| answer.status().as_u16()) {
            Ok(200) => Ok(()),
            answer => Err(format!("{when}: /readyz answers {answer:?}")),
        }
    }

    /// Posts a JSON body and returns status and answer. If there is no answer, the status is 0 and the text is the
    /// error.
    pub(crate) async fn post(&self, key: &str, path: &str, body: &Value) -> (u16, String) {
        self.post_bytes(key, path, Bytes::from(body.to_string())).await
    }

    /// Like [`World::post`], with a serialized body.
    pub(crate) async fn post_bytes(&self, key: &str, path: &str, body: Bytes) -> (u16, String) {
        let call = self.http.post(format!("{}{path}", self.server.url)).bearer_auth(key);
        let call = call.header("content-type", "application/json").body(body);
        let answer = match call.send().await {
            Ok(answer) => answer,
            Err(error) => return (0, format!("{error:?}")),
        };
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap_or_else(|error| format!("{error:?}")))
    }

    /// Like [`World::post`], but must succeed. Returns the answer's JSON.
    pub(crate) async fn ok(&self, key: &str, path: &str, body: &Value) -> Value {
        let (status, text) = self.post(key, path, body).await;
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Sends the same body `times` times at once with the attacker's key. Returns the status of each answer.
    pub(crate) async fn at_once(
        self: &Arc<Self>,
        times: usize,
        path: &'static str,
        body: String,
    ) -> Vec<u16> {
        self.by_keys(vec![self.attacker.clone(); times], path, body).await
    }

    /// Sends the same body once with each key, all at once. Returns the status of each answer.
    pub(crate) async fn by_keys(
        self: &Arc<Self>,
        keys: Vec<String>,
        path: &'static str,
        body: String,
    ) -> Vec<u16> {
        let body = Bytes::from(body);
        let call = |key: String| {
            let (world, body) = (Arc::clone(self), body.clone());
            tokio::spawn(async move { world.post_bytes(&key, path, body).await.0 })
        };
        let calls: Vec<_> = keys.into_iter().map(call).collect();
        let mut statuses = Vec::new();
        for call in calls {
            statuses.push(call.await.unwrap());
        }
        statuses
    }

    /// Uploads a file and returns its id.
    pub(crate) async fn upload(&self, key: &str, purpose: &str, content: &str) -> Result<String, Fault> {
        let body = format!(
            "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\n{purpose}\r\n--edge\r\n\
             content-disposition: form-data; name=\"file\"; filename=\"file.jsonl\"\r\n\r\n{content}\r\n--edge--\r\n"
        );
        let call = self.http.post(format!("{}/v1/files", self.server.url)).bearer_auth(key);
        let call = call.header("content-type", "multipart/form-data; boundary=edge").body(body);
        let text = call.send().await.unwrap().text().await.unwrap();
        id(&text).ok_or(format!("upload: {text}"))
    }

    /// The growth of the peak of resident memory, in KiB. `None` if the program has ended.
    fn growth_kib(&self) -> Option<u64> {
        Some(self.peak_kib()?.saturating_sub(self.before_kib.load(Ordering::Relaxed)))
    }

    /// The peak of resident memory in KiB, from `/proc/PID/status`. `None` if the program has ended.
    fn peak_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }
}

fn key(server: &Server, limits: &[&str]) -> String {
    let args = [&["keys", "create", "--name", "row", "--json"], limits].concat();
    let made: Value = serde_json::from_str(&server.ok(&args)).unwrap();
    made["value"]["secret"].as_str().unwrap().to_owned()
}

/// Starts the program with a configuration, and through a shell with a limit on its descriptors.
fn serve(file: PathBuf, text: &str, data: &std::path::Path, setup: Setup) -> Server {
    std::fs::write(&file, text).unwrap();
    let limit = setup.descriptors.map_or_else(String::new, |most| format!("ulimit -n {most}; "));
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}exec \"$0\" \"$@\"")]).arg(env!("CARGO_BIN_EXE_headrace"));
    command.arg("serve").arg("--config").arg(file);
    for (name, _) in program().get_envs() {
        command.env_remove(name);
    }
    let first = "sk-contained-test-0123456789abcdefghijk";
    // The log goes to a pipe that has no reader while the program runs.
    command.env("HEADRACE_BOOTSTRAP_KEY", first).env("HEADRACE_LOG", "error");
    Server::begin(command, data, &[], first)
}

/// The `id` of an answer.
pub(crate) fn id(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    Some(value.get("id")?.as_str()?.to_owned())
}

fn free_address() -> String {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Raises this process's descriptor limit so that it can hold the clients of all rows, as far as its hard limit allows.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < CLIENT_DESCRIPTORS) {
        limit.current = Some(limit.maximum.map_or(CLIENT_DESCRIPTORS, |most| most.min(CLIENT_DESCRIPTORS)));
        setrlimit(Resource::Nofile, limit).unwrap();
    }
}
