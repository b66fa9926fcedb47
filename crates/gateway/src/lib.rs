//! The stage list and the typestate of a request.
