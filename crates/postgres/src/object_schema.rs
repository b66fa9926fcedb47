//! The tables of clients' objects, files and batches, and how a program finds or makes them. They have a version of their
//! own, so that gateways that do not know them yet can run beside those that do.

use std::time::Duration;

use headrace_objects::ObjectError;

use crate::schema;
use crate::session::DatabaseSession;

/// The version of these tables that this program knows.
const VERSION: i32 = 2;
/// How long making the tables may take.
const LIMIT: Duration = Duration::from_secs(30);
/// Serializes programs that make the tables at the same time.
const LOCK: i64 = 0x4852_6f62;

/// The changes from each version to the next one, beginning with an empty database. A released change never changes.
///
/// Texts of clients are stored as bytes: PostgreSQL's texts cannot have the character U+0000, and a database may have
/// another encoding than UTF-8. Long texts of clients are indexed by their hash, because a row of an index is small.
/// `gateway` names the owner that works on a row, as in `headrace.gateway`.
const CHANGES: [&str; 2] = ["
CREATE TABLE headrace.held_objects (
    -- Every change of a project's objects locks its row first.
    project    text   PRIMARY KEY,
    responses  bigint NOT NULL,
    bytes      bigint NOT NULL,
    item_bytes bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE headrace.response (
    seq          bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    id           text   NOT NULL UNIQUE,
    project      text   NOT NULL,
    created      bigint NOT NULL,
    expires      bigint NOT NULL,
    -- 0: in progress, 1: ended, 2: deleted before its end
    state        int    NOT NULL,
    gateway      bytea,
    previous     text,
    conversation text,
    bytes        bigint NOT NULL,
    input        bytea  NOT NULL,
    output       bytea  NOT NULL,
    body         bytea  NOT NULL,
    events       bytea
);
CREATE INDEX response_project ON headrace.response (project, seq);
CREATE INDEX response_expires ON headrace.response (expires);
CREATE INDEX response_open ON headrace.response (seq) WHERE state = 0;
CREATE TABLE headrace.conversation (
    id       text   PRIMARY KEY,
    project  text   NOT NULL,
    created  bigint NOT NULL,
    expires  bigint NOT NULL,
    items    bigint NOT NULL,
    metadata bytea  NOT NULL
);
CREATE INDEX conversation_project ON headrace.conversation (project);
CREATE INDEX conversation_expires ON headrace.conversation (expires);
CREATE TABLE headrace.item (
    seq          bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    conversation text   NOT NULL REFERENCES headrace.conversation (id),
    id           bytea  NOT NULL,
    json         bytea  NOT NULL
);
CREATE INDEX item_conversation ON headrace.item (conversation, seq);
CREATE INDEX item_id ON headrace.item (conversation, sha256(id));
CREATE TABLE headrace.held_files (
    project text   PRIMARY KEY,
    files   bigint NOT NULL,
    bytes   bigint NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE headrace.file (
    seq     bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    id      text   NOT NULL UNIQUE,
    project text   NOT NULL,
    created bigint NOT NULL,
    expires bigint,
    bytes   bigint NOT NULL,
    name    bytea  NOT NULL,
    purpose bytea  NOT NULL,
    upload  text,
    -- 0: being written, 1: a file, 2: a part, 3: being removed
    state   int    NOT NULL,
    -- The last write to a file that is being written.
    touched timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX file_project ON headrace.file (project, state, seq);
CREATE INDEX file_expires ON headrace.file (expires) WHERE expires IS NOT NULL;
CREATE INDEX file_upload ON headrace.file (upload) WHERE upload IS NOT NULL;
CREATE INDEX file_unfinished ON headrace.file (state) WHERE state IN (0, 3);
CREATE TABLE headrace.file_chunk (
    file text   NOT NULL,
    at   bigint NOT NULL,
    data bytea  NOT NULL CHECK (length(data) <= 1048576),
    PRIMARY KEY (file, at)
);
-- Not compressed: a file is often compressed already, and a chunk is read in pieces.
ALTER TABLE headrace.file_chunk ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE TABLE headrace.upload (
    id           text   PRIMARY KEY,
    project      text   NOT NULL,
    created      bigint NOT NULL,
    expires      bigint NOT NULL,
    -- 0: pending, 1: completed, 2: cancelled
    status       int    NOT NULL,
    bytes        bigint NOT NULL,
    name         bytea  NOT NULL,
    purpose      bytea  NOT NULL,
    mime         bytea  NOT NULL,
    kept_seconds bigint,
    file         text
);
CREATE INDEX upload_expires ON headrace.upload (expires);
CREATE INDEX upload_project ON headrace.upload (project);
CREATE TABLE headrace.batch (
    seq       bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    id        text   NOT NULL UNIQUE,
    project   text   NOT NULL,
    -- 0: from a file, 1: of messages
    messages  int    NOT NULL,
    gateway   bytea,
    gone      bigint,
    total     bigint NOT NULL,
    completed bigint NOT NULL,
    failed    bigint NOT NULL,
    cancelled bigint NOT NULL,
    expired   bigint NOT NULL,
    state     bytea  NOT NULL,
    -- What its requests and answers are counted as, and what is reserved for requests that are not copied yet.
    bytes     bigint NOT NULL,
    reserved  bigint NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX batch_project ON headrace.batch (project, messages, seq);
CREATE INDEX batch_open ON headrace.batch (project) WHERE gone IS NULL;
CREATE INDEX batch_gone ON headrace.batch (gone) WHERE gone IS NOT NULL;
CREATE TABLE headrace.line (
    batch     text   NOT NULL,
    at        bigint NOT NULL,
    custom_id bytea  NOT NULL,
    body      bytea  NOT NULL,
    request   text   NOT NULL,
    answer    bytea  NOT NULL,
    status    int    NOT NULL,
    -- 0: not, 1: completed, 2: failed, 3: cancelled, 4: expired
    ended     int    NOT NULL,
    PRIMARY KEY (batch, at)
);
CREATE UNIQUE INDEX line_custom ON headrace.line (batch, sha256(custom_id));
", "
CREATE TABLE headrace.answer (
    seq     bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    -- The hold under which the request ran.
    hold    bytea  NOT NULL UNIQUE CHECK (length(hold) = 16),
    project text   NOT NULL,
    expires bigint NOT NULL,
    bytes   bigint NOT NULL
);
CREATE INDEX answer_project ON headrace.answer (project, seq) INCLUDE (bytes);
CREATE INDEX answer_expires ON headrace.answer (expires);
CREATE TABLE headrace.answer_part (
    hold bytea  NOT NULL REFERENCES headrace.answer (hold) ON DELETE CASCADE,
    at   bigint NOT NULL,
    data bytea  NOT NULL,
    PRIMARY KEY (hold, at)
);
"];

/// Makes the tables if they are missing, and brings older ones to this program's version.
///
/// # Errors
/// [`ObjectError::Unavailable`] if the database cannot be reached, this user may not make tables, or a newer program made
/// them.
pub(crate) fn ensure(session: &mut DatabaseSession) -> Result<(), ObjectError> {
    let unavailable = |why: String| ObjectError::Unavailable { why };
    schema::ensure(session).map_err(|error| unavailable(error.to_string()))?;
    let found = session.run(LIMIT, async |client| {
        client.batch_execute(&format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})")).await?;
        let exists = client.query_typed_one("SELECT to_regclass('headrace.object_schema') IS NOT NULL", &[]);
        if !exists.await?.get::<_, bool>(0) {
            let make = "CREATE TABLE headrace.object_schema (version int NOT NULL); \
                        INSERT INTO headrace.object_schema VALUES (0)";
            client.batch_execute(make).await?;
        }
        let version = client.query_typed_one("SELECT version FROM headrace.object_schema", &[]).await?;
        let version: i32 = version.get(0);
        let known = usize::try_from(version).unwrap_or(usize::MAX);
        for change in CHANGES.iter().skip(known) {
            client.batch_execute(change).await?;
        }
        if version < VERSION {
            let set = format!("UPDATE headrace.object_schema SET version = {VERSION}");
            client.batch_execute(&set).await?;
        }
        client.batch_execute("COMMIT").await?;
        Ok(version)
    });
    let version = found.map_err(|fault| {
        session.close();
        unavailable(fault.why())
    })?;
    if version > VERSION {
        let why = format!(
            "{}: a newer Headrace made the tables of objects (version {version}, this program knows {VERSION}): update this program",
            session.url()
        );
        return Err(unavailable(why));
    }
    Ok(())
}
