//! The table of numbered documents. Knows no statements.

/// The table, in files of every format.
pub(super) const TABLES: &str = "
CREATE TABLE IF NOT EXISTS documents (
    series  TEXT NOT NULL,
    number  INTEGER NOT NULL CHECK (number > 0),
    kind    TEXT NOT NULL,
    org     TEXT NOT NULL,
    period  TEXT NOT NULL,
    about   TEXT NOT NULL,
    created INTEGER NOT NULL,
    hash    BLOB NOT NULL CHECK (length(hash) = 32),
    text    TEXT NOT NULL,
    PRIMARY KEY (series, number),
    UNIQUE (kind, org, period, about)
) STRICT;
CREATE TRIGGER IF NOT EXISTS documents_are_never_changed BEFORE UPDATE ON documents
    BEGIN SELECT RAISE(ABORT, 'documents are never changed'); END;
CREATE TRIGGER IF NOT EXISTS documents_are_never_deleted BEFORE DELETE ON documents
    BEGIN SELECT RAISE(ABORT, 'documents are never deleted'); END;
";
