//! Alerts reach their endpoint at least once, with the same id, while senders end between any two steps, and no endpoint
//! delays another one.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc;

use headrace_config::layers::SettingLayers;
use headrace_domain::{
    BudgetName, HoldId, KeyId, ManualClock, ModelName, NanoDollars, OrgId, ProjectId, TokenClass,
};
use headrace_ledger::{
    BudgetMeasure, BudgetOrigin, BudgetRule, BudgetScope, BudgetWindow, ChargeLine, GrantKind,
    LedgerOperation, LocalLedgerAdmin, MemoryJournal, Owner, SettleOutcome,
};
use headrace_ledger::{HoldDemand, Ledger};
use headrace_store::{Storage, StorageUrl};

use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A request that an endpoint received: its headers and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ReceivedWebhook {
    id: String,
    timestamp: String,
    signature: String,
    body: String,
}

/// An endpoint that answers with the given statuses, and then with 204.
fn endpoint(statuses: Vec<u16>) -> (String, mpsc::Receiver<ReceivedWebhook>) {
    endpoint_with(statuses, "/".to_owned())
}

/// An endpoint that answers with the given statuses, and then with 204. Each answer names a location.
fn endpoint_with(statuses: Vec<u16>, location: String) -> (String, mpsc::Receiver<ReceivedWebhook>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = format!("http://{}", listener.local_addr().unwrap());
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut statuses = statuses.into_iter();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
            let (head, mut body) = loop {
                let count = stream.read(&mut chunk).unwrap();
                bytes.extend_from_slice(&chunk[..count]);
                let text = String::from_utf8(bytes.clone()).unwrap();
                if let Some((head, body)) = text.split_once("\r\n\r\n") {
                    break (head.to_owned(), body.to_owned());
                }
            };
            let header = |name: &str| {
                let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
                line.and_then(|line| line.split_once(": ")).unwrap().1.to_owned()
            };
            let length: usize = header("content-length").parse().unwrap();
            while body.len() < length {
                let count = stream.read(&mut chunk).unwrap();
                body.push_str(std::str::from_utf8(&chunk[..count]).unwrap());
            }
            let status = statuses.next().unwrap_or(204);
            let answer = format!(
                "HTTP/1.1 {status} X\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).unwrap();
            let received = ReceivedWebhook {
                id: header("webhook-id"),
                timestamp: header("webhook-timestamp"),
                signature: header("webhook-signature"),
                body,
            };
            if send.send(received).is_err() {
                return;
            }
        }
    });
    (host, receive)
}

struct WebhookWorld {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    ledger: Ledger,
    admin: Arc<dyn LedgerAdmin>,
    config: ServerSettings,
    next: u128,
}

impl WebhookWorld {
    fn new(host: &str) -> Self {
        Self::with(&[("ops", host)])
    }

    /// A world with endpoints, by their names and hosts.
    fn with(endpoints: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, SECRET).unwrap();
        let mut layers = SettingLayers::defaults();
        let text = |(name, host): &(&str, &str)| {
            format!(
                "[[webhooks]]\nname = \"{name}\"\nurl = \"{host}/hook\"\nhosts = [\"{host}\"]\nsecret_file = \"{}\"\n",
                secret.display()
            )
        };
        let text: String = endpoints.iter().map(text).collect();
        layers.file(std::path::Path::new("h.toml"), &text);
        let (config, layers) = ServerSettings::read(layers, true);
        assert!(layers.problems.is_empty(), "{:?}", layers.problems);
        let clock = Arc::new(ManualClock::at(UnixNanos::new(1_795_132_800_000_000_000)));
        let journal = MemoryJournal::new();
        let (ledger, _) = Ledger::open(Box::new(journal.clone()), Owner::new(1), clock.now()).unwrap();
        let admin = Arc::new(LocalLedgerAdmin::new(ledger.clone(), Arc::new(journal)));
        let mut world = Self { folder, clock, ledger, admin, config, next: 0 };
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        world.run(LedgerOperation::OpenProject { org: org.clone(), project });
        let (amount, reference) = (NanoDollars::new(1_000_000), "a test".into());
        world.run(LedgerOperation::Grant { org, amount, kind: GrantKind::Paid, reference });
        let rule = BudgetRule {
            name: BudgetName::new("daily").unwrap(),
            scope: BudgetScope::Org,
            org: None,
            subject: None,
            tier: None,
            window: BudgetWindow::Day,
            zone: "UTC".into(),
            measure: BudgetMeasure::Dollars,
            limit: 1_000,
            is_hard: false,
            thresholds: vec![50, 100],
            origin: BudgetOrigin::Operator,
        };
        world.run(LedgerOperation::SetBudgetRule { rule: Box::new(rule) });
        world
    }

    fn run(&mut self, command: LedgerOperation) {
        let done = self.ledger.transact(vec![command], self.clock.now());
        assert!(done.verdicts.iter().all(headrace_ledger::CommandResult::is_done), "{:?}", done.verdicts);
        done.durable.wait().unwrap();
    }

    /// A call that uses this amount of the budget.
    fn spend(&mut self, amount: i64) {
        self.next += 1;
        let hold = HoldId::from_bits(self.next);
        let (org, project) = (OrgId::new("o").unwrap(), ProjectId::new("p").unwrap());
        let model = ModelName::new("m").unwrap();
        let demand = HoldDemand {
            key: KeyId::new("key_1").unwrap(),
            user: None,
            model: model.clone(),
            tokens: u64::try_from(amount).unwrap(),
            tiers: None,
            places: None,
        };
        self.run(LedgerOperation::Hold {
            hold,
            org,
            project,
            amount: NanoDollars::new(amount),
            owner: Owner::new(1),
            expires: self.clock.now().after(Duration::from_secs(60)),
            demand: Some(demand),
            idempotency: None,
        });
        let line = ChargeLine {
            model,
            class: TokenClass::Input,
            tokens: u64::try_from(amount).unwrap(),
            price: headrace_domain::NanoDollarsPerMillion::new(1_000_000).unwrap(),
            amount: NanoDollars::new(amount),
        };
        let (lines, loss, outcome) = (vec![line], NanoDollars::ZERO, SettleOutcome::Completed);
        self.run(LedgerOperation::Settle { hold, lines, loss, outcome, answer: None });
    }

    /// A sender as after a start.
    fn webhooks(&self) -> Arc<AlertDelivery> {
        let storage = Storage::open(StorageUrl::of_folder(self.folder.path()), None);
        let clock: Arc<dyn Clock> = Arc::clone(&self.clock) as Arc<dyn Clock>;
        AlertDelivery::open(&self.config, storage.outbox(), Arc::clone(&self.admin), &clock).unwrap().unwrap()
    }
}

async fn deliver(webhooks: &Arc<AlertDelivery>) {
    let own = Arc::clone(webhooks);
    spawn_blocking(move || own.take_in()).await.unwrap().unwrap();
    for endpoint in &webhooks.endpoints {
        while webhooks.deliver_some(endpoint).await {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endpoint_that_does_not_answer_delays_no_other() {
    // Connections to it are accepted by the system, and get no answer for the 20 seconds that a try may take.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let hanging_host = format!("http://{}", hanging.local_addr().unwrap());
    let (host, received) = endpoint(Vec::new());
    let mut world = WebhookWorld::with(&[("hangs", &hanging_host), ("ops", &host)]);
    let sending = tokio::spawn(world.webhooks().run());
    let soon = Duration::from_secs(15);
    for amount in [600, 500] {
        world.spend(amount);
        received.recv_timeout(soon).unwrap();
    }
    hanging.set_nonblocking(true).unwrap();
    hanging.accept().unwrap();
    sending.abort();
}

#[tokio::test]
async fn an_alert_is_sent_until_it_is_accepted_with_one_id_over_restarts() {
    let (host, received) = endpoint(vec![500, 503]);
    let mut world = WebhookWorld::new(&host);
    world.webhooks();
    world.spend(600);
    // It ends before it has read anything, and after it has claimed and not sent.
    drop(world.webhooks());
    let claimed = world.webhooks();
    claimed.take_in().unwrap();
    assert_eq!(claimed.claim("ops".to_owned()).unwrap().len(), 1);
    drop(claimed);
    deliver(&world.webhooks()).await;
    assert!(received.try_recv().is_err(), "the lease of the one that ended still runs");
    world.clock.advance(LEASE);
    deliver(&world.webhooks()).await;
    let first = received.recv().unwrap();
    world.clock.advance(Duration::from_secs(5));
    deliver(&world.webhooks()).await;
    let second = received.recv().unwrap();
    world.clock.advance(Duration::from_secs(30));
    deliver(&world.webhooks()).await;
    let third = received.recv().unwrap();
    assert!(first.id == second.id && second.id == third.id && first.body == third.body);
    assert!(first.id.starts_with("evt_") && first.timestamp != third.timestamp);
    let body: serde_json::Value = serde_json::from_str(&first.body).unwrap();
    assert_eq!((body["type"].as_str(), body["data"]["percent"].as_u64()), (Some("budget.alert"), Some(50)));
    assert_eq!(body["data"]["limit"]["nano_dollars"], "1000");
    let secret = headrace_jwt::WebhookSecret::parse(&SECRET.into()).unwrap();
    let expected = secret.sign(&third.id, third.timestamp.parse().unwrap(), &third.body);
    assert_eq!(third.signature, expected);
    world.clock.advance(Duration::from_secs(90_000));
    deliver(&world.webhooks()).await;
    assert!(received.try_recv().is_err(), "it was accepted");
    // The next threshold is another event.
    world.spend(500);
    deliver(&world.webhooks()).await;
    assert_ne!(received.recv().unwrap().id, third.id);
}

#[tokio::test]
async fn status_410_ends_an_endpoint_until_it_is_resumed_and_redirects_are_not_followed() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let location = format!("http://{}/hook", elsewhere.local_addr().unwrap());
    let (host, received) = endpoint_with(vec![302, 410], location);
    let mut world = WebhookWorld::new(&host);
    let webhooks = world.webhooks();
    world.spend(600);
    deliver(&webhooks).await;
    received.recv().unwrap();
    world.clock.advance(Duration::from_secs(5));
    deliver(&webhooks).await;
    let gone = received.recv().unwrap();
    world.spend(500);
    world.clock.advance(Duration::from_secs(90_000));
    deliver(&webhooks).await;
    assert!(received.try_recv().is_err());
    let runtime = Handle::current();
    let own = Arc::clone(&webhooks);
    let acted = spawn_blocking(move || {
        let listed = own.act(WebhookAct::List, &runtime).unwrap();
        let resumed = own.act(WebhookAct::Resume { name: "ops".to_owned() }, &runtime).unwrap();
        let unknown = own.act(WebhookAct::Resume { name: "none".to_owned() }, &runtime).unwrap_err();
        (listed, resumed, unknown.code)
    });
    let (listed, resumed, unknown) = acted.await.unwrap();
    let WebhookReply::Endpoints(listed) = listed else { panic!("{listed:?}") };
    assert_eq!((listed[0].host.as_str(), listed[0].pending), (host.as_str(), 2));
    assert!(listed[0].gone.is_some() && listed[0].last_result.as_deref() == Some("status 410"));
    assert_eq!(resumed, WebhookReply::Resumed { name: "ops".to_owned() });
    assert_eq!(unknown, AdminCode::UnknownWebhook);
    deliver(&webhooks).await;
    let mut ids = [received.recv().unwrap().id, received.recv().unwrap().id];
    ids.sort();
    assert!(ids.contains(&gone.id) && ids[0] != ids[1]);
    assert_eq!(elsewhere.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "the redirect is not followed");
}
