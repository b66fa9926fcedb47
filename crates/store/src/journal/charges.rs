//! What each call held and was charged, and every balance, as tables for queries in a file beside the journal. A
//! thread of its own follows the journal; the file can be deleted at any time and is built again. Decides nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use headrace_domain::{
    HoldId, ModelName, NanoDollars, NanoDollarsPerMillion, OrgId, ProjectId, TokenClass, UnixNanos,
};
use headrace_ledger::{
    ChargeLine, Event, JournalError, JournalRow, ReleaseReason, SettleOutcome, Transaction, decode_row,
};
use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Connection, Row};

use super::{PAGE_ROWS, block_on, format_error, hash, open_to_read, row_of, signed, sql_error, unsigned};
use crate::sqlite::{self, Durability, Format, FormatError};

/// How often the thread looks for new rows.
const INTERVAL: Duration = Duration::from_millis(500);

const FORMAT: Format =
    Format { what: "ledger's charges", application_id: 0x4852_6c63, version: 1, schema: SCHEMA };

const SCHEMA: &str = "
CREATE TABLE progress (one INTEGER PRIMARY KEY CHECK (one = 1), sequence INTEGER NOT NULL, checksum BLOB NOT NULL) STRICT;
CREATE TABLE charge (
    hold    TEXT PRIMARY KEY,
    org     TEXT    NOT NULL,
    project TEXT    NOT NULL,
    taken   INTEGER NOT NULL,
    held    INTEGER NOT NULL,
    ended   INTEGER,
    outcome TEXT,
    charged INTEGER NOT NULL DEFAULT 0,
    loss    INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX charge_by_project ON charge (project, taken);
CREATE TABLE charge_line (
    hold   TEXT    NOT NULL,
    model  TEXT    NOT NULL,
    class  TEXT    NOT NULL,
    tokens INTEGER NOT NULL,
    price  INTEGER NOT NULL,
    amount INTEGER NOT NULL,
    PRIMARY KEY (hold, model, class)
) STRICT;
CREATE TABLE balance (account TEXT PRIMARY KEY, amount INTEGER NOT NULL) STRICT;
";

/// What one call held and was charged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Charge {
    /// The hold; its bits are its request id's.
    pub hold: HoldId,
    /// Who paid.
    pub org: OrgId,
    /// Whose budget.
    pub project: ProjectId,
    /// When the hold was taken, ledger time.
    pub taken: UnixNanos,
    /// How much it held.
    pub held: NanoDollars,
    /// How it ended; `None` while it is open.
    pub end: Option<ChargeEnd>,
    /// What was used, by class.
    pub lines: Vec<ChargeLine>,
}

/// How a hold ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChargeEnd {
    /// When, ledger time.
    pub time: UnixNanos,
    /// `completed`, `cancelled`, `failed`, or `released:` and the reason.
    pub outcome: String,
    /// What the customer paid.
    pub charged: NanoDollars,
    /// What went to the loss account.
    pub loss: NanoDollars,
}

/// The tables, kept up to date by a thread until this is dropped.
#[derive(Debug)]
pub struct Charges {
    path: PathBuf,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Charges {
    /// Follows the journal at `journal` into the file at `path`, which is built anew if it is missing, damaged, of
    /// another format, or of another journal.
    ///
    /// # Errors
    /// When neither can be opened.
    pub fn follow(journal: &Path, path: &Path) -> Result<Self, JournalError> {
        catch_up(journal, path)?;
        let (stop, stopped) = mpsc::channel::<()>();
        let (journal, own_path) = (journal.to_owned(), path.to_owned());
        let thread = std::thread::Builder::new()
            .name("ledger-charges".into())
            .spawn(move || {
                while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    // What fails now is tried again at the next turn: nothing rests on these tables.
                    let _ = catch_up(&journal, &own_path);
                }
            })
            .map_err(|error| JournalError::Io(error.to_string()))?;
        Ok(Self { path: path.to_owned(), stop: Some(stop), thread: Some(thread) })
    }

    /// What a call held and was charged; `None` if the tables have not come to it yet, or there is none.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn charge(&self, hold: &HoldId) -> Result<Option<Charge>, JournalError> {
        let found = self.query(async |connection: &mut SqliteConnection| {
            let rows = sqlx::query("SELECT * FROM charge WHERE hold = ?").bind(hold.to_string());
            charges_of(rows.fetch_all(&mut *connection).await?, connection).await
        })?;
        Ok(found.into_iter().next())
    }

    /// A project's latest calls, newest first.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn recent(&self, project: &ProjectId, limit: u32) -> Result<Vec<Charge>, JournalError> {
        self.query(async |connection: &mut SqliteConnection| {
            let latest = "SELECT * FROM charge WHERE project = ? ORDER BY taken DESC, hold DESC LIMIT ?";
            let rows = sqlx::query(latest).bind(project.as_str()).bind(limit);
            charges_of(rows.fetch_all(&mut *connection).await?, connection).await
        })
    }

    /// Every account's balance by name.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn balances(&self) -> Result<BTreeMap<String, NanoDollars>, JournalError> {
        let rows: Vec<(String, i64)> = self.query(async |connection: &mut SqliteConnection| {
            sqlx::query_as("SELECT account, amount FROM balance").fetch_all(connection).await
        })?;
        Ok(rows.into_iter().map(|(account, amount)| (account, NanoDollars::new(amount))).collect())
    }

    fn query<T>(
        &self,
        query: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, sqlx::Error>,
    ) -> Result<T, JournalError> {
        let result = block_on(async {
            let mut connection = sqlite::open(&self.path, Durability::Normal, true).await?;
            let result = query(&mut connection).await;
            connection.close().await?;
            result
        });
        result.map_err(|error| sql_error(&self.path, &error))
    }
}

impl Drop for Charges {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Brings the tables up to the journal's last row.
fn catch_up(journal: &Path, path: &Path) -> Result<(), JournalError> {
    let mut source = open_to_read(journal)?;
    let done = open_view(path).and_then(|mut view| {
        let followed = follow(&mut source, &mut view, path);
        let _ = block_on(view.close());
        followed
    });
    let _ = block_on(source.close());
    match done? {
        Followed::Whole => Ok(()),
        Followed::OfAnotherJournal => {
            remove_view(path);
            catch_up_anew(journal, path)
        }
    }
}

/// As `catch_up`, on a file that was just removed.
fn catch_up_anew(journal: &Path, path: &Path) -> Result<(), JournalError> {
    let (mut source, mut view) = (open_to_read(journal)?, open_view(path)?);
    let followed = follow(&mut source, &mut view, path);
    let _ = block_on(view.close());
    let _ = block_on(source.close());
    followed.map(|_| ())
}

enum Followed {
    Whole,
    OfAnotherJournal,
}

fn open_view(path: &Path) -> Result<SqliteConnection, JournalError> {
    let open = || {
        block_on(async {
            let mut connection = sqlite::open(path, Durability::Normal, false).await?;
            sqlite::ensure_format(&mut connection, FORMAT, false).await?;
            Ok::<_, FormatError>(connection)
        })
    };
    open().or_else(|_| {
        remove_view(path);
        open().map_err(|error| format_error(path, error))
    })
}

fn remove_view(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        // What cannot be removed will be reported when it cannot be opened.
        let _ = std::fs::remove_file(PathBuf::from(name));
    }
}

fn follow(
    source: &mut SqliteConnection,
    view: &mut SqliteConnection,
    path: &Path,
) -> Result<Followed, JournalError> {
    let sql = |error: sqlx::Error| sql_error(path, &error);
    loop {
        let (mut applied, checksum) = block_on(progress(view)).map_err(sql)?;
        if applied > 0 && block_on(checksum_at(source, applied)).map_err(sql)? != Some(checksum) {
            return Ok(Followed::OfAnotherJournal);
        }
        let page = "SELECT * FROM journal WHERE sequence > ? ORDER BY sequence LIMIT ?";
        let rows = sqlx::query(page).bind(signed(applied)?).bind(PAGE_ROWS).fetch_all(&mut *source);
        let rows = block_on(rows).map_err(sql)?;
        let rows: Vec<JournalRow> = rows.iter().map(row_of).collect::<Result<_, _>>()?;
        let Some(last) = rows.last() else { return Ok(Followed::Whole) };
        applied = last.sequence;
        let mut transactions = Vec::new();
        for row in &rows {
            transactions.extend(decode_row(row)?);
        }
        block_on(write(view, &transactions, signed(applied)?, &last.checksum)).map_err(sql)?;
    }
}

async fn progress(view: &mut SqliteConnection) -> Result<(u64, [u8; 32]), sqlx::Error> {
    let row = sqlx::query("SELECT sequence, checksum FROM progress").fetch_optional(view).await?;
    let Some(row) = row else { return Ok((0, [0; 32])) };
    Ok((unsigned(row.try_get("sequence")?)?, hash(row.try_get("checksum")?)?))
}

async fn checksum_at(source: &mut SqliteConnection, sequence: u64) -> Result<Option<[u8; 32]>, sqlx::Error> {
    let row = sqlx::query("SELECT checksum FROM journal WHERE sequence = ?").bind(sequence.cast_signed());
    let row = row.fetch_optional(source).await?;
    row.map(|row| hash(row.try_get("checksum")?)).transpose()
}

async fn write(
    view: &mut SqliteConnection,
    transactions: &[Transaction],
    sequence: i64,
    checksum: &[u8; 32],
) -> Result<(), sqlx::Error> {
    let mut write = view.begin().await?;
    let mut moved: BTreeMap<String, i64> = BTreeMap::new();
    for transaction in transactions {
        for entry in &transaction.entries {
            let sum = moved.entry(entry.account.to_string()).or_default();
            *sum = sum.saturating_add(entry.amount.get());
        }
        write_event(&mut write, transaction).await?;
    }
    for (account, amount) in moved {
        let add =
            "INSERT INTO balance VALUES (?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount";
        sqlx::query(add).bind(account).bind(amount).execute(&mut *write).await?;
    }
    let done = "INSERT INTO progress VALUES (1, ?, ?) \
                ON CONFLICT DO UPDATE SET sequence = excluded.sequence, checksum = excluded.checksum";
    sqlx::query(done).bind(sequence).bind(checksum.as_slice()).execute(&mut *write).await?;
    write.commit().await
}

async fn write_event(write: &mut SqliteConnection, transaction: &Transaction) -> Result<(), sqlx::Error> {
    let time = transaction.time.get().cast_signed();
    let (hold, outcome, charged, loss) = match &transaction.event {
        Event::ProjectOpened { .. } | Event::Granted { .. } | Event::BudgetSet { .. } => return Ok(()),
        Event::Held(held) => {
            let taken = "INSERT INTO charge (hold, org, project, taken, held) VALUES (?, ?, ?, ?, ?)";
            let taken = sqlx::query(taken).bind(held.hold.to_string()).bind(held.org.as_str());
            let taken = taken.bind(held.project.as_str()).bind(time).bind(held.amount.get());
            return taken.execute(write).await.map(|_| ());
        }
        Event::Settled(settled) => {
            for line in &settled.lines {
                let insert = "INSERT INTO charge_line VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE \
                              SET tokens = tokens + excluded.tokens, amount = amount + excluded.amount";
                let insert = sqlx::query(insert).bind(settled.hold.to_string()).bind(line.model.as_str());
                let insert = insert.bind(line.class.name()).bind(line.tokens.cast_signed());
                insert.bind(line.price.get()).bind(line.amount.get()).execute(&mut *write).await?;
            }
            let outcome = match settled.outcome {
                SettleOutcome::Completed => "completed",
                SettleOutcome::Cancelled => "cancelled",
                SettleOutcome::Failed => "failed",
            };
            (settled.hold, outcome, settled.charged, settled.loss)
        }
        Event::Released { hold, why } => {
            let outcome = match why {
                ReleaseReason::Refused => "released:refused",
                ReleaseReason::Failed => "released:failed",
                ReleaseReason::Cancelled => "released:cancelled",
                ReleaseReason::Rerouted => "released:rerouted",
                ReleaseReason::Orphaned => "released:orphaned",
                ReleaseReason::Expired => "released:expired",
            };
            (*hold, outcome, NanoDollars::ZERO, NanoDollars::ZERO)
        }
    };
    let end = "UPDATE charge SET ended = ?, outcome = ?, charged = ?, loss = ? WHERE hold = ?";
    let end = sqlx::query(end).bind(time).bind(outcome).bind(charged.get()).bind(loss.get());
    end.bind(hold.to_string()).execute(write).await.map(|_| ())
}

async fn charges_of(
    rows: Vec<SqliteRow>,
    connection: &mut SqliteConnection,
) -> Result<Vec<Charge>, sqlx::Error> {
    let mut charges = Vec::with_capacity(rows.len());
    for row in rows {
        let hold: String = row.try_get("hold")?;
        let lines = sqlx::query("SELECT * FROM charge_line WHERE hold = ? ORDER BY rowid").bind(&hold);
        let lines = lines.fetch_all(&mut *connection).await?;
        let ended: Option<i64> = row.try_get("ended")?;
        let end = match ended {
            None => None,
            Some(time) => Some(ChargeEnd {
                time: UnixNanos::new(unsigned(time)?),
                outcome: row.try_get("outcome")?,
                charged: NanoDollars::new(row.try_get("charged")?),
                loss: NanoDollars::new(row.try_get("loss")?),
            }),
        };
        charges.push(Charge {
            hold: parsed(&hold)?,
            org: parsed(row.try_get("org")?)?,
            project: parsed(row.try_get("project")?)?,
            taken: UnixNanos::new(unsigned(row.try_get("taken")?)?),
            held: NanoDollars::new(row.try_get("held")?),
            end,
            lines: lines.iter().map(line_of).collect::<Result<_, _>>()?,
        });
    }
    Ok(charges)
}

fn line_of(row: &SqliteRow) -> Result<ChargeLine, sqlx::Error> {
    let class: &str = row.try_get("class")?;
    let class = TokenClass::ALL.into_iter().find(|known| known.name() == class);
    let decode = |why: &str| sqlx::Error::Decode(why.to_owned().into());
    Ok(ChargeLine {
        model: parsed::<ModelName>(row.try_get("model")?)?,
        class: class.ok_or_else(|| decode("a token class that is not known"))?,
        tokens: unsigned(row.try_get("tokens")?)?,
        price: NanoDollarsPerMillion::new(row.try_get("price")?).map_err(|e| decode(&e.to_string()))?,
        amount: NanoDollars::new(row.try_get("amount")?),
    })
}

fn parsed<T: std::str::FromStr<Err = headrace_domain::IdError>>(text: &str) -> Result<T, sqlx::Error> {
    text.parse().map_err(|error: headrace_domain::IdError| sqlx::Error::Decode(error.to_string().into()))
}
