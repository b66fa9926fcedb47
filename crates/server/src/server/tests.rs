//! The usual server, and servers without some of its roles: they open, answer, reload and stop.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Mutex;
use std::thread::JoinHandle;

use headrace_admin::{AdminCommand, AdminReply, ServerStatus, control};
use headrace_config::layers::SettingLayers;
use headrace_fault_server::{FaultServer, TEXT};
use headrace_identity::SecretString;
use headrace_upstream::Upstream;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::*;
use crate::engines::LocalEngines;
use crate::exporters::page;
use crate::reload::ConfigReloader;
use crate::roles::EngineRole;

/// Time limit for anything on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const KEY: &str = "sk-roles-test-0123456789abcdefghijklm";
const SECRET: &str = "0123456789abcdef-0123456789abcdef";
const WITHOUT_ENGINES: RoleSet = RoleSet { engine: false, ..RoleSet::ALL };
const GATEWAY_ALONE: RoleSet = RoleSet { engine: false, edge: false };
/// A model that an engine computes.
const LOCAL: &str = "[[models]]\nname = \"here\"\npath = \"builtin:demo\"\n";

/// Settings of a server in this folder.
fn settings(root: &Path, text: &str) -> SettingLayers {
    let data_dir = root.join("data");
    let head = format!(
        "data_dir = {data_dir:?}\n[server]\nlisten = \"127.0.0.1:0\"\ndrain_delay = \"0s\"\n[engine]\nthreads = 1\n\
         [reload]\nwatch = \"0s\"\n"
    );
    let mut settings = SettingLayers::defaults();
    settings.file(&root.join("headrace.toml"), &(head + text));
    settings
}

/// An upstream with a model `far`, at this price in dollars per million input tokens.
fn relayed(url: &str, price: &str) -> String {
    format!(
        "[[upstreams]]\nname = \"up\"\nkind = \"openai\"\nurl = \"{url}\"\n\
         price = {{ input = \"{price}\", output = \"2\" }}\n[[models]]\nname = \"far\"\ntargets = [\"up/good\"]\n"
    )
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Checks the settings of a server with these roles.
fn checked(settings: SettingLayers, wanted: RoleSet) -> Result<CheckedConfig, String> {
    let first_key = SecretString::from(KEY);
    check(settings, true, Some(&first_key), &wanted.in_memory()).map_err(|error| error.to_string())
}

/// A server that serves in a thread of its own.
struct TestServer {
    url: Option<String>,
    text: Arc<Mutex<String>>,
    reloader: Arc<ConfigReloader>,
    context: RoleContext,
    stop: UnboundedSender<()>,
    serving: JoinHandle<(Result<ServingEnd, String>, Result<(), String>)>,
    root: TempDir,
    runtime: Runtime,
}

impl TestServer {
    fn start(text: &str, wanted: RoleSet) -> Self {
        let (root, runtime) = (tempfile::tempdir().unwrap(), runtime());
        let text = Arc::new(Mutex::new(text.to_owned()));
        let source: SettingsSource = {
            let (text, root) = (Arc::clone(&text), root.path().to_owned());
            Box::new(move || settings(&root, &text.lock().unwrap()))
        };
        let settings = source();
        let CheckedConfig { config, plan, assets_by_model, .. } = checked(settings.clone(), wanted).unwrap();
        let context = RoleContext::new(&config, &plan, runtime.handle().clone());
        let (data_dir, mut roles) = open(&config, plan, assets_by_model, wanted, &context).unwrap();
        assert_eq!((roles.engine.is_some(), roles.edge.is_some()), (wanted.engine, wanted.edge));
        let base = ReloadBase { source, file: None, settings, play_prices: true, log: Box::new(|_| Ok(())) };
        let first_key = Some(SecretString::from(KEY));
        let start = ServerStart { began: Instant::now(), manner: StartManner::Serve, first_key };
        let url = roles.edge.as_ref().map(|edge| edge.url().to_owned());
        let server = OpenServer::open(&config, &data_dir, &roles, start, base, &context).unwrap();
        let reloader = Arc::clone(server.reloader());
        let (stop, mut stops) = unbounded_channel();
        let serving = {
            let context = context.clone();
            std::thread::spawn(move || {
                let signal = async || {
                    // A dropped sender stops the server as well.
                    let _ = stops.recv().await;
                };
                let end = context.runtime.block_on(server.serve(&data_dir, &mut roles, &context, signal));
                (end, roles.close())
            })
        };
        Self { url, text, reloader, context, stop, serving, root, runtime }
    }

    /// Sends one request over a connection of its own. Returns the status and the answer with its head.
    fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let address = self.url.as_ref().unwrap().trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {KEY}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }

    fn chat(&self, model: &str) -> (u16, String) {
        let messages = json!([{ "role": "user", "content": "Hello" }]);
        let body = json!({ "model": model, "messages": messages, "max_tokens": 4 });
        self.ask("POST", "/v1/chat/completions", &body.to_string())
    }

    /// Executes an operator's command over the control socket, as soon as there is one.
    fn command(&self, command: &AdminCommand) -> AdminReply {
        let began = Instant::now();
        loop {
            match control::call(&self.root.path().join("data"), command) {
                Ok(reply) => return reply,
                Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn status(&self) -> ServerStatus {
        match self.command(&AdminCommand::Status) {
            AdminReply::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// The models of the engines here, as operators see them.
    fn engines(&self) -> Vec<Value> {
        match self.command(&AdminCommand::Now) {
            AdminReply::Now(now) => {
                let engines = now.get("engines").and_then(Value::as_array).unwrap();
                engines.iter().map(|engine| engine.get("model").unwrap().clone()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// The models that the server offers to other gateways, asked for over the worker protocol.
    fn offered(&self) -> Vec<String> {
        let (url, secret) = (self.url.as_ref().unwrap(), secret_file(self.root.path()));
        let text = format!(
            "[[upstreams]]\nname = \"worker\"\nkind = \"headrace\"\nurl = \"{url}\"\nsecret_file = {secret:?}\n"
        );
        let (config, read) = ServerSettings::read(settings(self.root.path(), &text), true);
        assert!(read.problems.is_empty(), "{:?}", read.problems);
        let worker = Upstream::new(config.upstreams.into_iter().next().unwrap().spec).unwrap();
        let about = self.runtime.block_on(worker.about(self.context.clock.now())).unwrap();
        about.models.into_iter().map(|model| model.capabilities.model).collect()
    }

    /// The price of a prompt token of `far`, in nanodollars.
    fn price(&self) -> i64 {
        let prices = self.reloader.prices().unwrap();
        prices.into_iter().find(|price| price.model.as_str() == "far").unwrap().input.unwrap()
    }

    fn reload(&self, text: &str) -> Result<Vec<String>, String> {
        text.clone_into(&mut self.text.lock().unwrap());
        self.reloader.reload("a test").map_err(|error| error.message)
    }

    fn metrics(&self) -> String {
        page(Arc::clone(&self.context.metrics))(None, &[]).1
    }

    /// Stops the server, which must settle every call.
    fn stop(self) {
        self.stop.send(()).unwrap();
        let (end, closed) = self.serving.join().unwrap();
        assert!(matches!(end, Ok(ServingEnd::Drained)), "{:?}", end.err());
        assert_eq!(closed, Ok(()));
    }
}

/// The file of the secret that workers and gateways share.
fn secret_file(root: &Path) -> PathBuf {
    let file = root.join("worker-secret");
    std::fs::write(&file, SECRET).unwrap();
    file
}

/// The setting that takes jobs from other gateways.
fn worker() -> (TempDir, String) {
    let root = tempfile::tempdir().unwrap();
    let text = format!("[worker]\nsecret_file = {:?}\n", secret_file(root.path()));
    (root, text)
}

#[test]
fn the_usual_server_has_every_role() {
    let upstreams = runtime();
    let upstream = upstreams.block_on(FaultServer::start()).unwrap();
    let (_secret, worker) = worker();
    let server =
        TestServer::start(&format!("{worker}{}{LOCAL}", relayed(&upstream.url(), "1")), RoleSet::ALL);
    for model in ["here", "far"] {
        let (status, answer) = server.chat(model);
        assert_eq!(status, 200, "{answer}");
    }
    assert_eq!(server.status().models, ["far", "here"]);
    assert_eq!(Some(server.status().listen), server.url);
    assert_eq!(server.engines(), ["here"]);
    assert_eq!(server.offered(), ["here"]);
    let metrics = server.metrics();
    for figure in
        ["headrace_engine_up{model=\"here\"} 1", "headrace_engines_ending 0", "headrace_ledger_up 1"]
    {
        assert!(metrics.contains(figure), "{figure} is missing:\n{metrics}");
    }
    server.stop();
}

#[test]
fn a_server_without_engines_answers_for_upstreams_and_refuses_models_of_its_own() {
    let upstreams = runtime();
    let upstream = upstreams.block_on(FaultServer::start()).unwrap();
    let (_secret, worker) = worker();
    let text = |price| worker.clone() + &relayed(&upstream.url(), price);
    let server = TestServer::start(&text("1"), WITHOUT_ENGINES);
    let answers = || {
        let (status, answer) = server.chat("far");
        assert!(status == 200 && answer.contains(TEXT), "{answer}");
    };
    answers();
    let (status, answer) = server.ask("GET", "/healthz", "");
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.chat("here").0, 404);
    assert_eq!(server.status().models, ["far"]);
    assert!(server.status().not_ready.is_empty(), "{:?}", server.status().not_ready);
    assert!(server.engines().is_empty() && server.offered().is_empty());
    assert!(!server.metrics().contains("headrace_engine"), "{}", server.metrics());

    // Prices change as on any server.
    let price = server.price();
    assert_eq!(server.reload(&text("3")), Ok(vec!["upstreams".to_owned()]));
    assert_eq!(server.price(), 3 * price);
    // A model of its own is refused by its name, and with it the rest of the configuration.
    let refused = server.reload(&(text("5") + LOCAL)).unwrap_err();
    for part in ["models[1]", "`here`", "no engines", "`targets`"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(server.price(), 3 * price);
    answers();
    server.stop();
}

#[test]
fn a_server_without_engines_does_not_start_with_models_of_its_own() {
    let root = tempfile::tempdir().unwrap();
    for (text, named) in [("", "headrace-demo"), (LOCAL, "here")] {
        let why = checked(settings(root.path(), text), WITHOUT_ENGINES).err().unwrap();
        assert!(why.contains(&format!("`{named}`")) && why.contains("no engines"), "{why}");
        assert!(checked(settings(root.path(), text), RoleSet::ALL).is_ok());
    }
}

#[test]
fn a_server_without_an_edge_serves_operators_and_stops() {
    let upstreams = runtime();
    let upstream = upstreams.block_on(FaultServer::start()).unwrap();
    let admin = "[admin]\nlisten = \"127.0.0.1:0\"\n";
    let text = |price| admin.to_owned() + &relayed(&upstream.url(), price);
    let server = TestServer::start(&text("1"), GATEWAY_ALONE);
    let status = server.status();
    assert_eq!((status.listen.as_str(), &status.models[..]), ("no address", &["far".to_owned()][..]));
    assert!(!server.root.path().join("data/address").exists());
    assert_eq!(server.reload(&text("2")), Ok(vec!["upstreams".to_owned()]));
    server.stop();
}

#[test]
fn an_engine_role_starts_and_stops_without_a_gateway() {
    let (root, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let (_secret, worker) = worker();
    let settings = settings(root.path(), &(worker + LOCAL));
    let CheckedConfig { config, plan, .. } = checked(settings, RoleSet::ALL).unwrap();
    let context = RoleContext::new(&config, &plan, runtime.handle().clone());
    let engine = EngineRole::start(&config, plan, &context).unwrap();
    let engines = engine.engines();
    let mut tasks = JoinSet::new();
    runtime.block_on(async { engine.spawn_tasks(&mut tasks) });
    let running = engines.running();
    let names: Vec<String> = running.iter().map(|model| model.loaded.config.name.to_string()).collect();
    assert_eq!(names, ["here"]);
    let is_up = |engines: &LocalEngines| engines.running().iter().all(|model| model.engine.health().is_up());
    assert!(is_up(&engines) && engines.offers().len() == 1 && !engines.in_memory().no_engines);
    engine.stop();
    assert!(!is_up(&engines));
    assert!(!engines.replace(running, || panic!("nothing is replaced after the end")));
    assert!(!root.path().join("data").exists(), "an engine needs no data directory");
}

#[test]
fn roles_that_were_open_are_closed_if_a_later_one_cannot_be_opened() {
    let (root, runtime) = (tempfile::tempdir().unwrap(), runtime());
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = settings(root.path(), LOCAL);
    for is_taken in [true, false] {
        let CheckedConfig { mut config, plan, assets_by_model, .. } =
            checked(settings.clone(), RoleSet::ALL).unwrap();
        let context = RoleContext::new(&config, &plan, runtime.handle().clone());
        let data_dir =
            DataDir::create(&config.data_dir, None, &crate::datadir::SecretFiles::default()).unwrap();
        if is_taken {
            config.server.edge.listen = taken.local_addr().unwrap();
        }
        let opened = ServerRoles::open(&config, plan, assets_by_model, &data_dir, RoleSet::ALL, &context);
        match opened {
            Ok(roles) => {
                assert!(!is_taken);
                assert_eq!(roles.close(), Ok(()));
            }
            Err(why) => assert!(is_taken && why.contains(&taken.local_addr().unwrap().to_string()), "{why}"),
        }
    }
}
