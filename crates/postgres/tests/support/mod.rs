//! A PostgreSQL server for one test: its own data directory, a free port, and programs of every version that is
//! installed.

use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// PostgreSQL refuses to run as root. Root's tests run it as another user.
pub(crate) const OTHER_USER: u32 = 65_534;

/// A running server. Dropping it stops it and removes its data.
pub(crate) struct PostgresServer {
    bin: PathBuf,
    folder: tempfile::TempDir,
    port: u16,
    /// More settings, as `name=value`.
    settings: Vec<String>,
    postmaster: Option<Child>,
}

/// The folders of PostgreSQL's programs, one for each version, as `HEADRACE_POSTGRES_BIN` names them, separated by
/// colons. Empty without the variable. The step `postgres` of the test command sets it.
pub(crate) fn versions() -> Vec<PathBuf> {
    let named = std::env::var("HEADRACE_POSTGRES_BIN").unwrap_or_default();
    if named.is_empty() {
        println!(
            "not run: HEADRACE_POSTGRES_BIN names no PostgreSQL (cargo run --release -p xtask -- test --only postgres)"
        );
    }
    named.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from).collect()
}

/// Writes a file that only the server's user can read.
pub(crate) fn write_private(path: &Path, content: &str) {
    std::fs::write(path, content).unwrap();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    if is_root() {
        chown(path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    }
}

pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|me| std::os::unix::fs::MetadataExt::uid(&me) == 0)
}

/// A program that runs as the server's user.
pub(crate) fn command(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/");
    if is_root() {
        command.uid(OTHER_USER).gid(OTHER_USER);
    }
    command
}

impl PostgresServer {
    /// Makes a cluster and starts it.
    pub(crate) fn start(bin: &Path) -> Self {
        Self::start_with(bin, |_| Vec::new())
    }

    /// Makes a cluster and starts it with further settings, which may name files in its folder.
    pub(crate) fn start_with(bin: &Path, settings: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let folder = tempfile::Builder::new().prefix("headrace-postgres-").tempdir_in("/tmp").unwrap();
        if is_root() {
            chown(folder.path(), Some(OTHER_USER), Some(OTHER_USER)).unwrap();
        }
        let data = folder.path().join("data");
        let made = command(bin.join("initdb"))
            .args(["-A", "trust", "-U", "headrace", "--no-sync", "-E", "UTF8", "--locale=C", "-D"])
            .arg(&data)
            .status()
            .unwrap();
        assert!(made.success(), "initdb: {made}");
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let settings = settings(folder.path());
        Self::start_on(bin, folder, port, settings)
    }

    /// Starts a server on the cluster in the folder `data` of `folder`.
    pub(crate) fn start_on(bin: &Path, folder: tempfile::TempDir, port: u16, settings: Vec<String>) -> Self {
        let mut server = Self { bin: bin.to_owned(), folder, port, settings, postmaster: None };
        server.resume();
        server
    }

    /// The folder of the cluster.
    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The server's processes whose title contains `title`.
    pub(crate) fn processes(&self, title: &str) -> Vec<u32> {
        let parent = self.postmaster.as_ref().unwrap().id().to_string();
        let listed = Command::new("ps").args(["--ppid", &parent, "-o", "pid=,args="]).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let titled = listed.lines().filter(|line| line.contains(title));
        titled.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
    }

    /// Kills the postmaster and every process of it, as a machine that loses power does.
    pub(crate) fn kill_all(&mut self) {
        let mut children = self.processes("");
        self.signal("-KILL");
        self.postmaster.take().unwrap().wait().unwrap();
        children.retain(|pid| *pid != std::process::id());
        for child in children {
            let _ = Command::new("kill").args(["-KILL", &child.to_string()]).stderr(Stdio::null()).status();
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://headrace@127.0.0.1:{}/postgres", self.port)
    }

    /// Starts the server on its data again.
    pub(crate) fn resume(&mut self) {
        let mut postmaster = command(self.bin.join("postgres"));
        postmaster.arg("-D").arg(self.folder.path().join("data")).arg("-p").arg(self.port.to_string());
        postmaster.arg("-k").arg(self.folder.path());
        for setting in ["listen_addresses=127.0.0.1", "fsync=on", "max_connections=60", "shared_buffers=16MB"]
        {
            postmaster.args(["-c", setting]);
        }
        for setting in &self.settings {
            postmaster.args(["-c", setting]);
        }
        // A pipe that nothing reads would stop the server once it is full.
        let log = self.folder.path().join("log");
        postmaster.stderr(std::fs::File::options().create(true).append(true).open(&log).unwrap());
        let mut postmaster = postmaster.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            // The last line of the file says `ready`, or `standby`, once sessions are accepted.
            let state = std::fs::read_to_string(self.folder.path().join("data/postmaster.pid"));
            let pid = postmaster.id().to_string();
            let accepts = |state: &str| state.ends_with("ready") || state.ends_with("standby");
            if state.is_ok_and(|state| state.starts_with(&pid) && accepts(state.trim_end())) {
                break;
            }
            if let Some(ended) = postmaster.try_wait().unwrap() {
                panic!("the server ended with {ended}: {}", std::fs::read_to_string(log).unwrap());
            }
            assert!(Instant::now() < until, "the server did not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        self.postmaster = Some(postmaster);
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.postmaster.as_ref().unwrap().id();
        let sent = Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap();
        assert!(sent.success());
    }

    /// Ends the server at once, like a crash: the postmaster aborts all sessions without a checkpoint.
    pub(crate) fn crash(&mut self) {
        self.signal("-QUIT");
        self.postmaster.take().unwrap().wait().unwrap();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if self.postmaster.is_some() {
            self.signal("-QUIT");
            let _ = self.postmaster.take().unwrap().wait();
        }
    }
}
