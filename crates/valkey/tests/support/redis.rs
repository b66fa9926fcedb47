//! A Redis server for one test: its own directory and a free port.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The variable that names the server's program.
const PROGRAM: &str = "HEADRACE_REDIS_SERVER";
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct RedisServer {
    program: PathBuf,
    dir: tempfile::TempDir,
    port: u16,
    arguments: Vec<String>,
    url: String,
    has_ca: bool,
    child: Child,
}

impl RedisServer {
    /// `None` if there is no program.
    pub(crate) fn start(extra: &[&str]) -> Option<Self> {
        let arguments =
            if extra.is_empty() { vec!["--save".to_owned(), String::new()] } else { texts(extra) };
        Self::start_at("redis://127.0.0.1:PORT", "--port", arguments, false)
    }

    pub(crate) fn start_with_tls(password: &str) -> Option<Self> {
        let arguments = texts(&["--port", "0", "--tls-auth-clients", "no", "--requirepass", password]);
        Self::start_at(&format!("rediss://:{password}@localhost:PORT"), "--tls-port", arguments, true)
    }

    fn start_at(url: &str, port_flag: &str, mut arguments: Vec<String>, has_ca: bool) -> Option<Self> {
        let Some(program) = std::env::var_os(PROGRAM).map(PathBuf::from) else {
            eprintln!("skipped: {PROGRAM} names no server");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if has_ca {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            std::fs::write(dir.path().join("cert.pem"), made.cert.pem()).unwrap();
            std::fs::write(dir.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
            arguments.extend(texts(&["--tls-cert-file", "cert.pem", "--tls-key-file", "key.pem"]));
        }
        arguments.extend(texts(&[port_flag, &port.to_string(), "--bind", "127.0.0.1"]));
        let url = url.replace("PORT", &port.to_string());
        let child = spawn(&program, &dir, &arguments);
        let server = Self { program, dir, port, arguments, url, has_ca, child };
        server.wait();
        Some(server)
    }

    fn wait(&self) {
        let since = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(since.elapsed() < PATIENCE, "the server does not start");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The URL, with the password if there is one.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL with another password.
    pub(crate) fn url_with(&self, password: &str) -> String {
        format!("rediss://:{password}@localhost:{}", self.port)
    }

    /// The certificate of a server with TLS.
    pub(crate) fn ca_file(&self) -> Option<PathBuf> {
        self.has_ca.then(|| self.dir.path().join("cert.pem"))
    }

    /// Writes the data to the file that the server reads when it starts.
    pub(crate) fn save(&self) {
        let mut client = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        client.write_all(b"SAVE\r\n").unwrap();
        let mut answer = [0; 5];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"+OK\r\n");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.program, &self.dir, &self.arguments);
        self.wait();
    }

    pub(crate) fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &PathBuf, dir: &tempfile::TempDir, arguments: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir.path()).stdout(Stdio::null());
    command.spawn().unwrap()
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}
