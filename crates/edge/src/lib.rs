//! Sockets, TLS, HTTP versions, byte and time limits, error to status.
