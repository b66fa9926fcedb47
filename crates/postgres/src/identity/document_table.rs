//! The table of numbered documents. Knows no statements.

/// A table beside the versioned ones, so that older programs, which do not know it, work with the database.
pub(super) const TABLES: &str = "
BEGIN;
SELECT pg_advisory_xact_lock(1213363044);
CREATE TABLE IF NOT EXISTS headrace.document (
    series  text   NOT NULL,
    number  bigint NOT NULL CHECK (number > 0),
    kind    text   NOT NULL,
    org     text   NOT NULL,
    period  text   NOT NULL,
    about   text   NOT NULL,
    created bigint NOT NULL,
    hash    bytea  NOT NULL CHECK (length(hash) = 32),
    text    text   NOT NULL,
    PRIMARY KEY (series, number),
    UNIQUE (kind, org, period, about)
);
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'document_is_append_only') THEN
        CREATE TRIGGER document_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON headrace.document
            EXECUTE FUNCTION headrace.refuse_change();
    END IF;
END $$;
COMMIT;
";
