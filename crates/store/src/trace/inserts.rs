//! Statements that insert many rows at once. There are few distinct statements, so that SQLite parses and caches each
//! once: parsing a long statement takes longer than running it. Knows no table.

use std::fmt::Write as _;

use headrace_trace::WritePace;
use sqlx::AssertSqlSafe;
use sqlx::sqlite::{Sqlite, SqliteArguments};

/// Maximum rows in one statement. With at most 14 values each, this is far below SQLite's limit of 32 766.
const MOST_ROWS: usize = 64;
/// Maximum rows if other threads should run after each statement: a fraction of a millisecond's work.
pub(super) const ROWS_IN_TURN: usize = 16;

/// Inserts rows into one table.
pub(super) struct InsertBatch {
    /// The statement's text before `VALUES`.
    pub(super) head: &'static str,
    /// Number of values per row.
    pub(super) columns: usize,
}

/// A statement whose values are not yet bound.
pub(super) type Insert = sqlx::query::Query<'static, Sqlite, SqliteArguments>;

impl InsertBatch {
    /// Splits rows into chunks for which statements exist. Each chunk is the largest power of two that fits.
    pub(super) fn chunks<T>(mut rows: &[T], pace: WritePace) -> impl Iterator<Item = &[T]> {
        let most = match pace {
            WritePace::GivesWay => ROWS_IN_TURN,
            WritePace::Hurries => MOST_ROWS,
        };
        std::iter::from_fn(move || {
            let largest = rows.len().min(most).checked_ilog2()?;
            let (chunk, rest) = rows.split_at_checked(1 << largest)?;
            rows = rest;
            Some(chunk)
        })
    }

    /// The statement for `rows` rows.
    pub(super) fn query(&self, rows: usize) -> Insert {
        let Self { head, columns } = self;
        let mut row = "(".to_owned() + &"?,".repeat(*columns);
        row.pop();
        row.push_str("),");
        let mut sql = String::with_capacity(head.len() + "VALUES ".len() + rows * row.len());
        // Writing to a string cannot fail.
        let _ = write!(sql, "{head}VALUES {}", row.repeat(rows));
        sql.pop();
        // The text consists of question marks and constants of this program.
        sqlx::query(AssertSqlSafe(sql))
    }
}

/// Yields the core to other threads if the pace asks for it.
pub(super) fn give_way(pace: WritePace) {
    if pace == WritePace::GivesWay {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sqlx::Execute as _;

    #[test]
    fn rows_go_in_pieces_of_few_sizes_and_none_is_left_out() {
        for count in [0, 1, 2, 3, 63, 64, 65, 191, 256] {
            let rows: Vec<usize> = (0..count).collect();
            for (pace, most) in [(WritePace::Hurries, MOST_ROWS), (WritePace::GivesWay, ROWS_IN_TURN)] {
                let chunks: Vec<&[usize]> = InsertBatch::chunks(&rows, pace).collect();
                assert!(chunks.iter().all(|chunk| chunk.len().is_power_of_two() && chunk.len() <= most));
                assert_eq!(chunks.concat(), rows);
            }
        }
    }

    #[test]
    fn a_statement_has_a_place_for_each_value() {
        let inserts = InsertBatch { head: "INSERT INTO t (a, b) ", columns: 2 };
        assert_eq!(inserts.query(1).sql().as_str(), "INSERT INTO t (a, b) VALUES (?,?)");
        assert_eq!(inserts.query(2).sql().as_str(), "INSERT INTO t (a, b) VALUES (?,?),(?,?)");
    }
}
