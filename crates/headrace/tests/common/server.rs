//! Starts the real program on a free port and talks to it over HTTP, for the tests beside this file.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    dead_code,
    reason = "helpers of tests, not all of which each test file uses"
)]

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Time limit for anything on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program, without the `HEADRACE_…` variables of the user who runs the tests.
pub(crate) fn program() -> Command {
    // Under `nohup`, a test inherits the ignored SIGHUP and passes it on to the program. This restores the default.
    let mut command = Command::new("env");
    command.arg("--default-signal=HUP").arg(env!("CARGO_BIN_EXE_headrace"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HEADRACE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// Runs a command to its end.
pub(crate) fn run(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

/// Everything that the program printed, on both streams.
pub(crate) fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    pub(crate) dir: PathBuf,
    pub(crate) url: String,
    /// Everything that it printed until it was ready.
    pub(crate) welcome: String,
    pub(crate) key: String,
    /// What it has said on standard error so far, and the thread that reads it.
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts `headrace up` on a free port, with a key of the test's own.
    pub(crate) fn up(dir: &Path, more: &[&str]) -> Self {
        let key = "sk-integration-test-0123456789abcdef";
        let mut command = program();
        command.env("HEADRACE_BOOTSTRAP_KEY", key);
        Self::start(command, dir, more, key)
    }

    /// Starts `headrace up` without choosing a key, and takes the printed one.
    pub(crate) fn up_with_fresh_key(dir: &Path) -> Self {
        let mut server = Self::start(program(), dir, &[], "");
        let start = server.welcome.find("sk-").expect("the key is shown");
        server.key = server.welcome[start..].split_whitespace().next().unwrap().to_owned();
        server
    }

    /// Starts `headrace up` again on the same directory, with a key created before.
    pub(crate) fn up_with_key_kept(dir: &Path, key: &str) -> Self {
        Self::start(program(), dir, &[], key)
    }

    /// Starts `headrace serve` with a configuration file of this text. The data is in `root/data`.
    pub(crate) fn serve(root: &Path, text: &str, bootstrap: Option<&str>) -> Self {
        let file = root.join("headrace.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = program();
        command.arg("serve").arg("--config").arg(file);
        command.envs(bootstrap.map(|key| ("HEADRACE_BOOTSTRAP_KEY", key)));
        Self::begin(command, &root.join("data"), &[], "")
    }

    fn start(mut command: Command, dir: &Path, more: &[&str], key: &str) -> Self {
        command.arg("up");
        Self::begin(command, dir, more, key)
    }

    /// Starts the prepared command on a free port and in that directory.
    pub(crate) fn begin(command: Command, dir: &Path, more: &[&str], key: &str) -> Self {
        Self::begin_at("127.0.0.1:0", command, dir, more, key)
    }

    /// Starts the prepared command at a given address.
    pub(crate) fn begin_at(at: &str, mut command: Command, dir: &Path, more: &[&str], key: &str) -> Self {
        // There is no load balancer in front. A test that wants the delay sets it in `more`.
        command.args(["--set", "server.drain_delay=0s"]);
        command.args(["--listen", at, "--threads", "1", "--data-dir"]).arg(dir).args(more);
        let address = dir.join("address");
        // A killed server leaves its address file behind until the next start.
        let _ = std::fs::remove_file(&address);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let began = Instant::now();
        while !address.exists() {
            if let Some(status) = child.try_wait().unwrap() {
                let mut why = String::new();
                child.stderr.take().unwrap().read_to_string(&mut why).unwrap();
                panic!("the server ended with {status}: {why}");
            }
            assert!(began.elapsed() < PATIENCE, "the server does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        let url = format!("http://{}", std::fs::read_to_string(address).unwrap().trim());
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut welcome = String::new();
        loop {
            let mut line = String::new();
            assert!(out.read_line(&mut line).unwrap() > 0, "{welcome}");
            welcome.push_str(&line);
            if line.contains("headrace credit show") || line.contains("keys create --name NAME") {
                break;
            }
        }
        // Later output must not block the program.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        let log = Arc::<Mutex<String>>::default();
        let (said, mut err) = (Arc::clone(&log), BufReader::new(child.stderr.take().unwrap()));
        let reader = std::thread::spawn(move || {
            let mut line = Vec::new();
            while err.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                said.lock().unwrap().push_str(&String::from_utf8_lossy(&line));
                line.clear();
            }
        });
        Self { child, dir: dir.to_owned(), url, welcome, key: key.to_owned(), log, reader: Some(reader) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.url.trim_start_matches("http://").parse().unwrap()
    }

    /// Runs a command on this server's directory.
    pub(crate) fn command(&self, args: &[&str]) -> Output {
        program().args(args).arg("--data-dir").arg(&self.dir).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its standard output.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let output = self.command(args);
        assert!(output.status.success(), "{args:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Asks the demo model. Returns the answer's status and body.
    pub(crate) async fn chat(&self, key: &str, body: Value) -> (u16, Value) {
        let response = self.send(key, &body).await;
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) async fn send(&self, key: &str, body: &Value) -> reqwest::Response {
        let client = reqwest::Client::new();
        let call = client.post(format!("{}/v1/chat/completions", self.url)).bearer_auth(key);
        let call = call.header("content-type", "application/json").body(body.to_string());
        call.timeout(PATIENCE).send().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let client = reqwest::Client::new();
        let call = client.get(format!("{}{path}", self.url)).bearer_auth(&self.key).timeout(PATIENCE);
        let response = call.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Sends a signal by its name, as `kill` spells it.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// What the server has printed on standard error so far.
    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the server has printed `part` on standard error.
    pub(crate) fn until_said(&self, part: &str) {
        let began = Instant::now();
        while !self.log.lock().unwrap().contains(part) {
            assert!(began.elapsed() < PATIENCE, "no `{part}` in {}", self.log.lock().unwrap());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the program to end. Returns its status and its standard error.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.reader.take().unwrap().join().unwrap();
                return (status, self.log.lock().unwrap().clone());
            }
            assert!(began.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends SIGTERM and waits for a clean end.
    pub(crate) fn stop(&mut self) {
        self.signal("TERM");
        let (status, text) = self.wait();
        assert_eq!(status.code(), Some(0), "{text}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A question to the demo model.
pub(crate) fn question(more: Value) -> Value {
    let mut body = json!({
        "model": "headrace-demo",
        "messages": [{ "role": "user", "content": "What happens when I call an LLM API?" }],
        "max_tokens": 24,
    });
    let Value::Object(more) = more else { panic!() };
    body.as_object_mut().unwrap().extend(more);
    body
}
