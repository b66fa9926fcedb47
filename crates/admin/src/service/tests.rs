//! Commands over a directory and a ledger in memory, directly and through a control socket.

use std::path::{Path, PathBuf};
use std::time::Duration;

use headrace_domain::{Clock, KeyId, ManualClock, NanoDollars};
use headrace_identity::{HashSecret, MemoryKeyStore};
use headrace_ledger::{Budget, BudgetPeriod, GrantKind, MemoryJournal, Owner};

use super::*;
use crate::control::{self, ControlSocket};
use crate::error::ControlError;

const NOW: UnixNanos = UnixNanos::new(1_790_000_000_000_000_000);

fn service() -> AdminService {
    let directory = Directory::open(Arc::new(MemoryKeyStore::default()), HashSecret::new([7; 32])).unwrap();
    let (ledger, _) = Ledger::open(Box::new(MemoryJournal::default()), Owner::new(1), NOW).unwrap();
    let defaults = DefaultLimits {
        key: RateLimits { requests_per_minute: Some(60), ..RateLimits::default() },
        ..DefaultLimits::default()
    };
    AdminService::new(Arc::new(directory), ledger, defaults, Box::new(ServerStatus::default))
}

fn org(name: &str) -> OrgId {
    OrgId::new(name).unwrap()
}

fn project(name: &str) -> ProjectId {
    ProjectId::new(name).unwrap()
}

fn create_key(name: &str) -> AdminCommand {
    AdminCommand::CreateKey {
        project: project("p"),
        name: name.to_owned(),
        models: None,
        endpoints: None,
        limits: None,
        expires: None,
        secret: None,
    }
}

fn run(service: &AdminService, command: AdminCommand) -> Result<AdminReply, AdminError> {
    service.execute(command, "tester", NOW)
}

fn with_project() -> AdminService {
    let service = service();
    run(&service, AdminCommand::CreateOrg { id: org("o"), limits: None }).unwrap();
    run(&service, AdminCommand::CreateProject { id: project("p"), org: org("o"), limits: None }).unwrap();
    service
}

#[test]
fn a_key_lives_until_it_is_revoked() {
    let service = with_project();
    let AdminReply::KeyCreated { key, secret } = run(&service, create_key("first")).unwrap() else {
        panic!()
    };
    assert_eq!(key.limits.requests_per_minute, Some(60), "the configured default");
    assert!(service.directory.authenticate(secret.expose(), NOW).is_ok());
    assert!(!format!("{secret:?} {key:?}").contains(secret.expose()));
    let AdminReply::Keys(keys) = run(&service, AdminCommand::ListKeys { project: None }).unwrap() else {
        panic!()
    };
    assert_eq!(keys, std::slice::from_ref(&key));
    for _ in 0..2 {
        run(&service, AdminCommand::RevokeKey { id: key.id.clone() }).unwrap();
    }
    assert!(service.directory.authenticate(secret.expose(), NOW).is_err());
    let AdminReply::Audit(rows) = run(&service, AdminCommand::ShowAudit { last: 2 }).unwrap() else {
        panic!()
    };
    let acts: Vec<_> = rows.iter().map(|row| row.act.as_str()).collect();
    assert_eq!(acts, ["key.create", "key.revoke"]);
}

#[test]
fn credit_and_budget() {
    let service = with_project();
    let amount = NanoDollars::from_dollars("10").unwrap();
    let grant = |org| AdminCommand::GrantCredit {
        org,
        amount,
        kind: GrantKind::Promotional,
        reference: "play".to_owned(),
    };
    let reply = run(&service, grant(org("o"))).unwrap();
    assert_eq!(reply, AdminReply::CreditGranted { org: org("o"), amount, balance: amount });
    let budget = Budget { limit: NanoDollars::new(5), period: BudgetPeriod::Month };
    run(&service, AdminCommand::SetBudget { project: project("p"), budget: Some(budget) }).unwrap();
    let AdminReply::Credit(rows) = run(&service, AdminCommand::ShowCredit { org: None }).unwrap() else {
        panic!()
    };
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((row.available, row.budget.as_ref().map(|b| b.left)), (amount, Some(NanoDollars::new(5))));
    run(&service, AdminCommand::SetBudget { project: project("p"), budget: None }).unwrap();
    assert_eq!(run(&service, grant(org("x"))).unwrap_err().code, "unknown_org");
}

#[test]
fn refusals_say_what_to_try() {
    let service = with_project();
    let rows = [
        (AdminCommand::RevokeKey { id: KeyId::new("key_x").unwrap() }, "unknown_key", "keys list"),
        (AdminCommand::CreateOrg { id: org("o"), limits: None }, "exists", "another"),
        (
            AdminCommand::CreateProject { id: project("q"), org: org("x"), limits: None },
            "unknown_org",
            "orgs create",
        ),
        (AdminCommand::SetBudget { project: project("q"), budget: None }, "unknown_project", "projects"),
        (AdminCommand::ListKeys { project: Some(project("q")) }, "unknown_project", "projects"),
        (AdminCommand::ShowCredit { org: Some(org("x")) }, "unknown_org", "orgs"),
        (create_key(""), "invalid", ""),
    ];
    for (command, code, remedy) in rows {
        let error = run(&service, command.clone()).unwrap_err();
        assert_eq!(error.code, code, "{command:?}");
        assert!(error.remedy.contains(remedy), "{error:?}");
    }
}

#[test]
fn a_project_without_an_account_gets_one_at_start() {
    let service = service();
    service.directory.create_org(org("o"), RateLimits::default(), "t", NOW).unwrap();
    service.directory.create_project(project("p"), org("o"), RateLimits::default(), "t", NOW).unwrap();
    assert!(service.ledger.standing(&org("o"), &project("p")).is_none());
    service.reconcile(NOW).unwrap();
    assert!(service.ledger.standing(&org("o"), &project("p")).is_some());
}

fn over_socket(dir: PathBuf) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let socket = runtime.block_on(async { ControlSocket::bind(&dir) }).unwrap();
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(NOW));
    let server = runtime.spawn(socket.serve(Arc::new(with_project()), clock));
    assert_eq!(control::call(&dir, &AdminCommand::Ping).unwrap(), AdminReply::Pong);
    let reply = control::call(&dir, &create_key("over the socket")).unwrap();
    assert!(matches!(reply, AdminReply::KeyCreated { .. }));
    let gone = AdminCommand::RevokeKey { id: KeyId::new("key_x").unwrap() };
    let Err(ControlError::Refused(error)) = control::call(&dir, &gone) else { panic!() };
    assert_eq!(error.code, "unknown_key");
    // A second server on the same directory takes the place of a socket that was left behind.
    server.abort();
    runtime.shutdown_timeout(Duration::from_secs(5));
    let Err(ControlError::NotRunning { .. }) = control::call(&dir, &AdminCommand::Ping) else { panic!() };
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
    use std::io::{BufRead, Write};
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let socket = runtime.block_on(async { ControlSocket::bind(dir.path()) }).unwrap();
    let path = dir.path().join("control.sock");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    runtime.spawn(socket.serve(Arc::new(with_project()), Arc::new(ManualClock::at(NOW))));
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
