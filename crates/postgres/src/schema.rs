//! The tables, and how a program finds or makes them. A newer program's tables are refused by name.

use std::time::Duration;

use headrace_ledger::JournalError;

use crate::session::{DatabaseSession, SessionFault};

/// The version of the tables that this program knows.
pub(crate) const SCHEMA_VERSION: i32 = 4;

/// How long making the tables may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Version 1. The trigger keeps the journal append-only for other programs, too. The head fills a page by a third, so that
/// PostgreSQL can keep its versions in the same page.
const TABLES: &str = "
CREATE SCHEMA IF NOT EXISTS headrace;
CREATE TABLE headrace.schema_version (version int NOT NULL);
INSERT INTO headrace.schema_version VALUES (1);
CREATE TABLE headrace.head (
    id        int    PRIMARY KEY CHECK (id = 0),
    sequence  bigint NOT NULL,
    checksum  bytea  NOT NULL,
    -- How often organisations, projects, keys and operators were changed.
    directory bigint NOT NULL
) WITH (fillfactor = 30);
INSERT INTO headrace.head VALUES (0, 0, decode(repeat('00', 32), 'hex'), 0);
CREATE TABLE headrace.journal (
    sequence       bigint PRIMARY KEY,
    owner          bytea  NOT NULL,
    turn           bigint NOT NULL,
    format_version int    NOT NULL,
    time           bigint NOT NULL,
    previous       bytea  NOT NULL,
    checksum       bytea  NOT NULL,
    payload        bytea  NOT NULL,
    UNIQUE (owner, turn)
);
CREATE FUNCTION headrace.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$;
CREATE TRIGGER journal_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON headrace.journal
    EXECUTE FUNCTION headrace.refuse_change();
CREATE TABLE headrace.snapshot (
    sequence       bigint PRIMARY KEY,
    format_version int    NOT NULL,
    row_checksum   bytea  NOT NULL,
    checksum       bytea  NOT NULL,
    payload        bytea  NOT NULL
);
CREATE TABLE headrace.gateway (
    owner          bytea       PRIMARY KEY,
    name           text        NOT NULL,
    version        text        NOT NULL,
    format_version int         NOT NULL,
    joined         timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen           timestamptz NOT NULL DEFAULT clock_timestamp(),
    state          text        NOT NULL CHECK (state IN ('live', 'left', 'dead'))
);
CREATE INDEX live_gateways ON headrace.gateway (seen) WHERE state = 'live';
-- `changed` of a record: the value of `head.directory` after its last change.
CREATE FUNCTION headrace.number_change() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN NEW.changed := (SELECT directory FROM headrace.head WHERE id = 0); RETURN NEW; END $$;
CREATE TABLE headrace.orgs (
    position bigint GENERATED ALWAYS AS IDENTITY,
    changed  bigint NOT NULL,
    id       text   PRIMARY KEY,
    limits   text   NOT NULL,
    regions  text   NOT NULL,
    created  bigint NOT NULL
);
CREATE INDEX changed_orgs ON headrace.orgs (changed);
CREATE TRIGGER number_change BEFORE INSERT OR UPDATE ON headrace.orgs
    FOR EACH ROW EXECUTE FUNCTION headrace.number_change();
CREATE TABLE headrace.projects (
    position bigint GENERATED ALWAYS AS IDENTITY,
    changed  bigint NOT NULL,
    id       text   PRIMARY KEY,
    org      text   NOT NULL REFERENCES headrace.orgs (id),
    limits   text   NOT NULL,
    created  bigint NOT NULL,
    UNIQUE (id, org)
);
CREATE INDEX changed_projects ON headrace.projects (changed);
CREATE TRIGGER number_change BEFORE INSERT OR UPDATE ON headrace.projects
    FOR EACH ROW EXECUTE FUNCTION headrace.number_change();
CREATE TABLE headrace.keys (
    position  bigint GENERATED ALWAYS AS IDENTITY,
    changed   bigint NOT NULL,
    id        text   PRIMARY KEY,
    hash      bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    -- The number of the secret, and the one before it.
    number    int    NOT NULL DEFAULT 1,
    former    bytea  CHECK (length(former) = 32),
    until     bigint,
    org       text   NOT NULL,
    project   text   NOT NULL,
    name      text   NOT NULL,
    hint      text   NOT NULL,
    models    text   NOT NULL,
    endpoints text   NOT NULL,
    limits    text   NOT NULL,
    regions   text   NOT NULL,
    created   bigint NOT NULL,
    expires   bigint,
    revoked   bigint,
    FOREIGN KEY (project, org) REFERENCES headrace.projects (id, org)
);
CREATE INDEX changed_keys ON headrace.keys (changed);
CREATE TRIGGER number_change BEFORE INSERT OR UPDATE ON headrace.keys
    FOR EACH ROW EXECUTE FUNCTION headrace.number_change();
CREATE TABLE headrace.operators (
    position bigint GENERATED ALWAYS AS IDENTITY,
    id       text   PRIMARY KEY,
    hash     bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    name     text   NOT NULL,
    role     text   NOT NULL,
    hint     text   NOT NULL,
    created  bigint NOT NULL,
    revoked  bigint
);
CREATE TABLE headrace.audit (
    seq      bigint PRIMARY KEY,
    at       bigint NOT NULL,
    actor    text   NOT NULL,
    act      text   NOT NULL,
    subject  text   NOT NULL,
    detail   text   NOT NULL,
    previous bytea  NOT NULL CHECK (length(previous) = 32),
    hash     bytea  NOT NULL CHECK (length(hash) = 32)
);
CREATE INDEX audit_about ON headrace.audit (act, subject, seq);
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON headrace.audit
    EXECUTE FUNCTION headrace.refuse_change();
CREATE TABLE headrace.audit_end (
    id   int    PRIMARY KEY CHECK (id = 0),
    seq  bigint NOT NULL,
    hash bytea  NOT NULL CHECK (length(hash) = 32)
);
INSERT INTO headrace.audit_end VALUES (0, 0, decode(repeat('00', 32), 'hex'));
CREATE TABLE headrace.announced (
    seq bigint PRIMARY KEY REFERENCES headrace.audit (seq),
    act text   NOT NULL
);
CREATE TABLE headrace.secret_check (
    id    int   PRIMARY KEY CHECK (id = 0),
    value bytea NOT NULL CHECK (length(value) = 32)
);
CREATE TABLE headrace.secret (
    name  text  PRIMARY KEY,
    value bytea NOT NULL
);
";

/// The changes from version 1 on, each to the next version. Gateways of the version before run on: they do not read the
/// new columns, so that they apply no tiers and address lists. A program of an older version does not start any more.
const CHANGES: [&str; 3] = ["
ALTER TABLE headrace.orgs ADD COLUMN tier text;
ALTER TABLE headrace.projects ADD COLUMN tier text;
ALTER TABLE headrace.keys ADD COLUMN details text NOT NULL DEFAULT '{}', ADD COLUMN tier text;
CREATE TABLE headrace.tiers (
    changed bigint NOT NULL,
    name    text   PRIMARY KEY,
    -- Null if the tier was removed.
    rules   text,
    created bigint NOT NULL
);
CREATE INDEX changed_tiers ON headrace.tiers (changed);
CREATE TRIGGER number_change BEFORE INSERT OR UPDATE ON headrace.tiers
    FOR EACH ROW EXECUTE FUNCTION headrace.number_change();
-- No trigger: a use is no change that gateways load.
CREATE TABLE headrace.key_uses (
    key  text   PRIMARY KEY,
    used bigint NOT NULL
) WITH (fillfactor = 50);
", "
-- Gateways of the version before accept the keys of users that are not active.
CREATE TABLE headrace.accounts (
    position bigint GENERATED ALWAYS AS IDENTITY,
    changed  bigint NOT NULL,
    id       text   PRIMARY KEY,
    kind     text   NOT NULL,
    org      text   NOT NULL REFERENCES headrace.orgs (id),
    -- Name, login and hash are set only to be unique.
    name     text,
    login    text   UNIQUE,
    hash     bytea  UNIQUE CHECK (length(hash) = 32),
    tier     text,
    version  bigint NOT NULL,
    record   text   NOT NULL,
    UNIQUE (kind, org, name)
);
-- Operators of one organisation. Gateways of the version before do not know them, and must not take them for operators of
-- the server.
CREATE TABLE headrace.org_operators (
    position bigint GENERATED ALWAYS AS IDENTITY,
    id       text   PRIMARY KEY,
    hash     bytea  NOT NULL UNIQUE CHECK (length(hash) = 32),
    name     text   NOT NULL,
    role     text   NOT NULL,
    org      text   NOT NULL,
    person   text,
    hint     text   NOT NULL,
    created  bigint NOT NULL,
    revoked  bigint
);
CREATE INDEX changed_accounts ON headrace.accounts (changed);
CREATE TRIGGER number_change BEFORE INSERT OR UPDATE ON headrace.accounts
    FOR EACH ROW EXECUTE FUNCTION headrace.number_change();
", "
-- Gateways of the version before record labels of all calls, and never requests or answers.
ALTER TABLE headrace.projects ADD COLUMN records text NOT NULL DEFAULT '{}';
"];

/// Serializes programs that make the tables at the same time.
const LOCK: i64 = 0x4852_6c67;

/// Finds the tables, or makes them.
///
/// # Errors
/// [`JournalError::NewerFormat`] for the tables of a newer program. Another error if the database cannot be reached, or
/// this user may not make tables.
pub(crate) fn ensure(session: &mut DatabaseSession) -> Result<(), JournalError> {
    let found = session.run(LIMIT, async |client| {
        client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})")).await?;
        let exists = client.query_typed_one("SELECT to_regclass('headrace.schema_version') IS NOT NULL", &[]);
        if !exists.await?.get::<_, bool>(0) {
            client.batch_execute(TABLES).await?;
        }
        let version = client.query_typed_one("SELECT version FROM headrace.schema_version", &[]).await?;
        let version: i32 = version.get(0);
        let done = usize::try_from(version - 1).unwrap_or(usize::MAX);
        for change in CHANGES.iter().skip(done) {
            client.batch_execute(change).await?;
        }
        if version < SCHEMA_VERSION {
            let set = format!("UPDATE headrace.schema_version SET version = {SCHEMA_VERSION}");
            client.batch_execute(&set).await?;
        }
        let durable = client.query_typed_one("SELECT current_setting('synchronous_commit')", &[]).await?;
        client.batch_execute("COMMIT").await?;
        Ok((version, durable.get::<_, String>(0)))
    });
    let (version, durable) = found.map_err(|fault| {
        session.close();
        journal_error(fault)
    })?;
    if version > SCHEMA_VERSION {
        let number = |n: i32| u32::try_from(n).unwrap_or(u32::MAX);
        let (found, known) = (number(version), number(SCHEMA_VERSION));
        return Err(JournalError::NewerFormat { what: "database", found, known });
    }
    if durable == "off" {
        let why = format!(
            "{}: synchronous_commit is off, so that the database could lose what callers were told: set it to on",
            session.url()
        );
        return Err(JournalError::Io(why));
    }
    Ok(())
}

/// The SQLSTATE of a full disk.
const DISK_FULL: &str = "53100";

/// Returns the journal's error for a fault.
pub(crate) fn journal_error(fault: SessionFault) -> JournalError {
    match fault {
        SessionFault::Refused { code, why } if code == DISK_FULL => JournalError::Full(why),
        fault => JournalError::Io(fault.why()),
    }
}
