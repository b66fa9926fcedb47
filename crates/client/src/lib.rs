//! The client: streaming, conversation assembly, retries.
