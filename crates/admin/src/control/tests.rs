//! Commands through a control socket, to a service over a directory and a ledger in memory.

use headrace_domain::{KeyId, ManualClock, OrgId, ProjectId, Residency, UnixNanos};
use headrace_identity::{Directory, HashSecret, KeyDetails, MemoryKeyStore};
use headrace_ledger::{Ledger, LocalLedgerAdmin, MemoryJournal, Owner};

use super::*;
use crate::command::ServerStatus;
use crate::service::DefaultLimits;

const NOW: UnixNanos = UnixNanos::new(1_790_000_000_000_000_000);

fn org() -> OrgId {
    OrgId::new("o").unwrap()
}

fn project() -> ProjectId {
    ProjectId::new("p").unwrap()
}

fn service_with_project() -> AdminService {
    let directory = Directory::open(Arc::new(MemoryKeyStore::default()), HashSecret::new([7; 32])).unwrap();
    let journal = MemoryJournal::default();
    let (ledger, _) = Ledger::open(Box::new(journal.clone()), Owner::new(1), NOW).unwrap();
    let service = AdminService::new(
        Arc::new(directory),
        Arc::new(LocalLedgerAdmin::new(ledger, Arc::new(journal))),
        Box::new(DefaultLimits::default),
        Box::new(ServerStatus::default),
    );
    let create_org = AdminCommand::CreateOrg { id: org(), limits: None, regions: Residency::Anywhere };
    let create_project = AdminCommand::CreateProject { id: project(), org: org(), limits: None };
    for command in [create_org, create_project] {
        service.execute(command, "tester", NOW).unwrap();
    }
    service
}

fn over_socket(dir: PathBuf) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let socket = runtime.block_on(async { ControlSocket::bind(&dir) }).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(NOW));
    let server = runtime.spawn(socket.serve(Arc::new(service_with_project()), clock));
    assert!(matches!(call(&dir, &AdminCommand::ListOrgs), Ok(AdminReply::Orgs(_))));
    let create_key = AdminCommand::CreateKey {
        project: project(),
        name: "over the socket".to_owned(),
        models: None,
        endpoints: None,
        limits: None,
        regions: Residency::Anywhere,
        expires: None,
        secret: None,
        details: KeyDetails::default(),
        tier: None,
    };
    let reply = call(&dir, &create_key).unwrap();
    assert!(matches!(reply, AdminReply::KeyCreated { .. }));
    let gone = AdminCommand::RevokeKey { id: KeyId::new("key_x").unwrap() };
    let Err(ControlError::Refused(error)) = call(&dir, &gone) else { panic!() };
    assert_eq!(error.code.name(), "unknown_key");
    // A second server on the same directory replaces a socket that was left behind.
    server.abort();
    runtime.shutdown_timeout(Duration::from_secs(5));
    let Err(ControlError::NotRunning { .. }) = call(&dir, &AdminCommand::ListOrgs) else { panic!() };
}

#[test]
fn commands_travel_over_the_control_socket() {
    let dir = tempfile::tempdir().unwrap();
    over_socket(dir.path().to_owned());
}

#[test]
fn a_path_too_long_for_a_socket_is_reached_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let long: PathBuf =
        [dir.path(), Path::new(&"d".repeat(120)), Path::new(&"e".repeat(120))].iter().collect();
    std::fs::create_dir_all(&long).unwrap();
    over_socket(long);
}

#[test]
fn the_socket_is_its_owners_alone_and_answers_nonsense() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let socket = runtime.block_on(async { ControlSocket::bind(dir.path()) }).unwrap();
    let path = dir.path().join("control.sock");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    runtime.spawn(socket.serve(Arc::new(service_with_project()), Arc::new(ManualClock::at(NOW))));
    for (line, code) in [
        ("nonsense\n", "not_understood"),
        ("{\"version\":2,\"command\":{\"command\":\"ping\"}}\n", "version"),
        ("{\"version\":1,\"command\":{\"command\":\"ping\"},\"more\":1}\n", "not_understood"),
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        std::io::BufReader::new(stream).read_line(&mut answer).unwrap();
        assert!(answer.contains(code), "{line} {answer}");
    }
}
