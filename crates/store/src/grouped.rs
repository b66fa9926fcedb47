//! Groups the changes of several callers in one SQLite transaction. A caller that arrives while another one writes
//! joins its transaction, and one commit with one fsync covers all of them. A failed change is undone alone. Knows no
//! table.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use headrace_objects::ObjectError;
use sqlx::sqlite::SqliteConnection;

use crate::sqlite::{FormatError, SqliteFile};
use crate::statement_error::StatementError;

/// Maximum changes that share one commit, so that the first of them does not wait forever.
pub(crate) const MOST_IN_GROUP: u32 = 64;

/// The group writer. See the top of the file.
pub(crate) struct GroupCommit {
    writer: Mutex<GroupWriterState>,
    /// Number of callers that wait for the lock. While there is one, a later caller will commit.
    waiting: AtomicU32,
}

struct GroupWriterState {
    database: SqliteFile,
    /// Changes that are made and not yet committed.
    group: Option<OpenGroup>,
}

struct OpenGroup {
    outcome: Arc<GroupOutcome>,
    changes: u32,
}

/// The outcome of a group, once it is known.
#[derive(Default)]
struct GroupOutcome {
    result: Mutex<Option<Result<(), ObjectError>>>,
    known: Condvar,
}

impl GroupOutcome {
    fn set(&self, result: Result<(), ObjectError>) {
        *self.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.known.notify_all();
    }

    fn wait(&self) -> Result<(), ObjectError> {
        let mut result = self.result.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match &*result {
                Some(result) => return result.clone(),
                None => result = self.known.wait(result).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl GroupCommit {
    pub(crate) fn new(database: SqliteFile) -> Self {
        Self { writer: Mutex::new(GroupWriterState { database, group: None }), waiting: AtomicU32::new(0) }
    }

    /// Runs `change` and keeps all of it or none. When this returns `Ok`, the change is on the disk.
    ///
    /// # Errors
    /// Returns the error of `change` or of the disk.
    pub(crate) fn write<T>(
        &self,
        change: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StatementError>,
    ) -> Result<T, ObjectError> {
        let mut writer = self.turn();
        let (done, outcome) = writer.make(false, change)?;
        let committed = self.leave(writer, &outcome);
        // A failed change is already undone. The outcome of the others does not matter.
        let done = done?;
        committed.map(|()| done)
    }

    /// Runs changes that save themselves (see [`SqliteFile::share`]), each as [`Self::write`] does, in order. Returns the
    /// result of each. The caller passes at most [`MOST_IN_GROUP`].
    pub(crate) fn write_each<C>(&self, changes: impl Iterator<Item = C>) -> Vec<Result<(), ObjectError>>
    where
        C: AsyncFnOnce(&mut SqliteConnection) -> Result<(), StatementError>,
    {
        let mut writer = self.turn();
        let made: Vec<_> = changes.map(|change| writer.make(true, change)).collect();
        let open = writer.group.as_ref().map(|group| Arc::clone(&group.outcome));
        if let Some(outcome) = open {
            // Each change gets the outcome below.
            let _ = self.leave(writer, &outcome);
        } else {
            drop(writer);
        }
        let awaited = |(done, outcome): (Result<(), ObjectError>, Arc<GroupOutcome>)| {
            done.and_then(|()| outcome.wait())
        };
        made.into_iter().map(|made| made.and_then(awaited)).collect()
    }

    /// Runs `work` on the file itself, between two groups.
    ///
    /// # Errors
    /// Returns the error of `work`.
    pub(crate) fn between<T>(
        &self,
        work: impl FnOnce(&mut SqliteFile) -> Result<T, FormatError>,
    ) -> Result<T, ObjectError> {
        let mut writer = self.turn();
        if writer.group.is_some() {
            // The group's callers get the result through their outcome.
            let _ = writer.commit();
        }
        work(&mut writer.database).map_err(StatementError::from).map_err(ObjectError::from)
    }

    /// Commits the open group, unless a waiting caller will, and waits for the outcome.
    fn leave(
        &self,
        mut writer: MutexGuard<'_, GroupWriterState>,
        outcome: &GroupOutcome,
    ) -> Result<(), ObjectError> {
        if writer.is_waited_for(self.waiting.load(Ordering::Acquire)) {
            drop(writer);
            return outcome.wait();
        }
        writer.commit()
    }

    fn turn(&self) -> MutexGuard<'_, GroupWriterState> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        writer
    }
}

impl GroupWriterState {
    /// Joins the open group, or begins one.
    fn join(&mut self) -> Result<Arc<GroupOutcome>, ObjectError> {
        if self.group.is_none() {
            self.database.begin().map_err(StatementError::from).map_err(ObjectError::from)?;
        }
        let group = self.group.get_or_insert_with(|| OpenGroup { outcome: Arc::default(), changes: 0 });
        group.changes += 1;
        Ok(Arc::clone(&group.outcome))
    }

    /// Makes a change in the group. Returns its result, and the outcome through which the group's result is reported.
    ///
    /// # Errors
    /// Fails if the group was lost or could not begin.
    fn make<T>(
        &mut self,
        saves_itself: bool,
        change: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, StatementError>,
    ) -> Result<(Result<T, ObjectError>, Arc<GroupOutcome>), ObjectError> {
        let outcome = self.join()?;
        let made = catch_unwind(AssertUnwindSafe(|| self.database.share(saves_itself, change)));
        match made {
            Ok((done, true)) => Ok((done.map_err(ObjectError::from), outcome)),
            Ok((done, false)) => {
                self.give_up("the disk failed a change that shared its commit");
                let lost = || unavailable("the transaction was lost".to_owned());
                Err(done.err().map_or_else(lost, ObjectError::from))
            }
            Err(panic) => {
                self.give_up("a change that shared its commit panicked");
                resume_unwind(panic)
            }
        }
    }

    /// Whether a waiting caller will join the group and commit it.
    fn is_waited_for(&self, waiting: u32) -> bool {
        waiting > 0 && self.group.as_ref().is_some_and(|group| group.changes < MOST_IN_GROUP)
    }

    fn commit(&mut self) -> Result<(), ObjectError> {
        let committed = self.database.commit().map_err(StatementError::from).map_err(ObjectError::from);
        self.end(&committed);
        committed
    }

    /// Undoes all changes of the group.
    fn give_up(&mut self, why: &str) {
        self.database.abandon();
        self.end(&Err(unavailable(why.to_owned())));
    }

    fn end(&mut self, result: &Result<(), ObjectError>) {
        if let Some(group) = self.group.take() {
            group.outcome.set(result.clone());
        }
    }
}

fn unavailable(why: String) -> ObjectError {
    ObjectError::Unavailable { why }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::sqlite::{CommitDurability, FileFormat};

    const FORMAT: FileFormat = FileFormat {
        what: "test",
        application_id: 7,
        version: 1,
        newest: 1,
        schema: "CREATE TABLE word (id INTEGER PRIMARY KEY, word TEXT NOT NULL) STRICT",
        upgrade: "",
        shrinks: false,
    };

    fn open(dir: &std::path::Path) -> SqliteFile {
        SqliteFile::open(&dir.join("words.db"), CommitDurability::Full, FORMAT).unwrap()
    }

    async fn add(connection: &mut SqliteConnection, id: i64, word: &str) -> Result<(), StatementError> {
        let adding = sqlx::query("INSERT INTO word VALUES (?, ?)").bind(id).bind(word);
        adding.execute(connection).await?;
        Ok(())
    }

    fn ids(dir: &std::path::Path) -> Vec<i64> {
        let found = open(dir).read(async |connection| -> Result<_, StatementError> {
            let rows: Vec<(i64,)> =
                sqlx::query_as("SELECT id FROM word ORDER BY id").fetch_all(connection).await?;
            Ok(rows)
        });
        found.map_err(ObjectError::from).unwrap().into_iter().map(|(id,)| id).collect()
    }

    #[test]
    fn each_change_is_kept_or_undone_by_itself_whoever_shares_its_commit() {
        const EACH: i64 = 40;
        let dir = tempfile::tempdir().unwrap();
        let (grouped, done_count) = (GroupCommit::new(open(dir.path())), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..16_i64 {
                let (grouped, done_count) = (&grouped, &done_count);
                scope.spawn(move || {
                    for at in 0..EACH {
                        let id = thread * EACH + at;
                        let done = grouped.write(async |connection| {
                            add(connection, id, "x").await?;
                            // Every fifth change fails after its first statement and is undone.
                            if id % 5 == 0 { add(connection, id, "again").await } else { Ok(()) }
                        });
                        assert_eq!(done.is_ok(), id % 5 != 0, "{id}: {done:?}");
                        done_count.fetch_add(usize::from(done.is_ok()), Ordering::SeqCst);
                    }
                });
            }
        });
        let kept: Vec<i64> = (0..16 * EACH).filter(|id| id % 5 != 0).collect();
        assert_eq!(ids(dir.path()), kept);
        assert_eq!(done_count.into_inner(), kept.len());
    }

    #[test]
    fn a_group_shares_one_commit_and_its_failure() {
        let dir = tempfile::tempdir().unwrap();
        let grouped = GroupCommit::new(open(dir.path()));
        let alone = grouped.write(async |connection| add(connection, 0, "x").await);
        assert!(alone.is_ok());
        // The first caller leads while others wait. The last caller finds no other waiting, and its panic ends the
        // group.
        std::thread::scope(|scope| {
            let mut writer = grouped.turn();
            let first = scope.spawn(|| grouped.write(async |connection| add(connection, 1, "x").await));
            while grouped.waiting.load(Ordering::SeqCst) < 1 {
                std::thread::yield_now();
            }
            let last = scope.spawn(|| {
                grouped.write(async |_: &mut SqliteConnection| -> Result<(), StatementError> {
                    panic!("as asked")
                })
            });
            while grouped.waiting.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            assert!(writer.group.is_none() && writer.join().is_ok());
            drop(writer);
            let first = first.join().unwrap();
            assert!(last.join().is_err());
            // A change committed before the panic is kept. A change that shared the transaction fails with an error.
            assert_eq!(ids(dir.path()).contains(&1), first.is_ok());
        });
        assert!(grouped.write(async |connection| add(connection, 2, "x").await).is_ok());
        let kept = ids(dir.path());
        assert!(kept.contains(&0) && kept.contains(&2), "{kept:?}");
    }

    #[test]
    fn of_changes_that_save_themselves_one_that_fails_is_undone_alone_and_one_behind_its_end_loses_all() {
        const SAVED: &str = "SAVEPOINT change; INSERT INTO word VALUES (?1, 'x'); INSERT INTO word VALUES (?2, 'x'); RELEASE change";
        let dir = tempfile::tempdir().unwrap();
        let grouped = GroupCommit::new(open(dir.path()));
        let change = |(first, second, fails_late): (i64, i64, bool)| {
            async move |connection: &mut SqliteConnection| -> Result<(), StatementError> {
                sqlx::query(SAVED).bind(first).bind(second).execute(&mut *connection).await?;
                if fails_late { Err(unavailable("late".to_owned()).into()) } else { Ok(()) }
            }
        };
        let write = |changes: &[(i64, i64, bool)]| -> Vec<bool> {
            let done = grouped.write_each(changes.iter().copied().map(change));
            done.into_iter().map(|done| done.is_ok()).collect()
        };
        assert_eq!(write(&[(1, 2, false), (3, 1, false), (4, 5, false)]), [true, false, true]);
        assert_eq!(ids(dir.path()), [1, 2, 4, 5], "3 is undone with its change alone");
        // A failure after the change was released cannot be undone alone. Nothing of the group is kept, and every
        // caller gets an error.
        assert_eq!(write(&[(6, 7, false), (8, 9, true), (10, 11, false)]), [false, false, true]);
        assert_eq!(ids(dir.path()), [1, 2, 4, 5, 10, 11]);
    }
}
