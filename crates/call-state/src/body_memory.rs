//! The memory for reading a body: the figures per byte and per JSON element, and what a call has reserved by them. The
//! figures are upper bounds. A test with a counting allocator compares them with the memory actually taken.

use std::sync::Arc;

use bytes::Bytes;
use headrace_call_api::MemoryReservation;
use headrace_domain::Stage;

use crate::memory::NoMemory;
use crate::rejection::Rejection;
use crate::render_gate::RenderPermit;

/// Bytes of memory per body byte for reading and rendering: the text as parsed, masked, rendered and in ids.
const READ_COPIES: u64 = 32;
/// Bytes of a JSON list or object element as a tree, in a list that grows.
const ELEMENT_BYTES: u64 = 160;
/// Bytes of a JSON object as a tree, including its index.
const OBJECT_BYTES: u64 = 1_024;
/// Bytes that are scanned at once: their count fits a byte, and they fill whole vector registers.
const COUNTED_BYTES: usize = 224;
/// Bytes per body byte that remain afterwards: the parsed text, and schemas as trees.
pub const TEXT_COPIES: u64 = 3;
/// Bytes of any call: its task, its record, its answer's head.
pub const CALL_BYTES: u64 = 36 << 10;

/// What a call has reserved to be parsed and rendered.
pub struct RequestMemory {
    /// Bytes of the body and of any history before it: an upper bound of all text that a template may show.
    pub body_bytes: usize,
    /// Bytes that the JSON elements of that text take as trees.
    pub tree_bytes: u64,
    /// The reservation.
    pub memory: Arc<MemoryReservation>,
    /// The turn at the gate for long bodies. `None` for a short body.
    pub turn: Option<RenderPermit>,
    /// The body, kept if the call was parsed to be rendered and may fall back to a model with a message backend.
    pub body: Option<Bytes>,
}

impl RequestMemory {
    /// Reserves the memory that the JSON elements of `text` take as trees. Counting takes about a millisecond for 4 MB.
    ///
    /// # Errors
    /// The key has no memory left for it.
    pub fn reserve_trees(&mut self, text: &[u8]) -> Result<(), Rejection> {
        let bytes = tree_bytes(text);
        self.memory.add(bytes).map_err(|full| NoMemory::of(&self.memory, full).at(Stage::Parse))?;
        self.tree_bytes = self.tree_bytes.saturating_add(bytes);
        Ok(())
    }
}

/// Memory in bytes for reading and rendering a body of `body_bytes`, including `tree_bytes` for its JSON elements.
pub fn reading_bytes(body_bytes: usize, tree_bytes: u64) -> u64 {
    CALL_BYTES.saturating_add(READ_COPIES.saturating_mul(body_bytes as u64)).saturating_add(tree_bytes)
}

/// The most bytes that the JSON elements of a body take as trees. Brackets and commas inside strings count too, because
/// strings may hold JSON.
pub fn tree_bytes(body: &[u8]) -> u64 {
    let (mut objects, mut elements) = (0_u64, 0_u64);
    for part in body.chunks(COUNTED_BYTES) {
        let (mut braces, mut others) = (0_u8, 0_u8);
        for byte in part {
            braces = braces.wrapping_add(u8::from(*byte == b'{'));
            others = others.wrapping_add(u8::from(*byte == b',') | u8::from(*byte == b'['));
        }
        objects += u64::from(braces);
        elements += u64::from(others);
    }
    objects.saturating_mul(OBJECT_BYTES).saturating_add(elements.saturating_mul(ELEMENT_BYTES))
}

/// Memory in bytes for scanning a body of `body_bytes` and sending it on.
pub fn scanning_bytes(body_bytes: usize) -> u64 {
    CALL_BYTES.saturating_add(TEXT_COPIES.saturating_mul(body_bytes as u64))
}
