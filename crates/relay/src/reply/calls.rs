//! Assembles tool calls from pieces. Assigns each piece to its call, and emits the calls one after another, in whatever
//! order an upstream sends them. Knows no dialect.

use headrace_domain::ReplyEvent;

use super::fault::{FaultKind, FaultNotes, ReplyFault};

/// Limit in bytes for pieces that wait for earlier calls to end.
const MOST_HELD: usize = 8 << 20;
/// Limit for the calls of one choice.
const MOST_CALLS: usize = 1024;
/// Limit in bytes for the names and ids of a choice's calls. Some servers put a signature into an id.
const MOST_NAMED: usize = 1 << 20;
/// The longest part of the answer's id within a generated id, in bytes. OpenAI accepts ids of up to 40 bytes.
const SEED_BYTES: usize = 24;

/// A piece of a tool call. Empty strings are absent fields.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct CallPiece<'a> {
    /// The upstream's index of the call.
    pub(super) key: Option<u64>,
    pub(super) id: &'a str,
    pub(super) name: &'a str,
    /// JSON text, to be joined with the other pieces.
    pub(super) arguments: &'a str,
}

/// The calls of one choice.
#[derive(Debug, Default)]
pub(super) struct CallAssembler {
    /// In the order in which they appeared. A call's position is its index in the reply events.
    calls: Vec<PartialCall>,
    /// The call whose pieces are emitted as they come.
    current: usize,
    held: usize,
    /// Bytes of all names and ids.
    named: usize,
}

#[derive(Debug)]
struct PartialCall {
    key: Option<u64>,
    /// The id as the upstream gave it.
    id: String,
    name: String,
    /// Arguments that have not been emitted.
    waiting: String,
    shown: bool,
    /// The upstream marked the call as complete.
    over: bool,
    extent: JsonExtent,
}

impl PartialCall {
    /// Whether the call accepts no more arguments.
    fn is_whole(&self) -> bool {
        self.over || self.extent.is_whole()
    }
}

/// Receives the events of tool calls: the number of the choice that they belong to, and the list that they are added to.
pub(super) struct CallSink<'a> {
    pub(super) choice: u32,
    /// The answer's id, as a seed for generated ids.
    pub(super) seed: &'a str,
    pub(super) notes: &'a mut FaultNotes,
    pub(super) out: &'a mut Vec<ReplyEvent>,
}

impl CallAssembler {
    /// Whether a call has begun whose remaining pieces must precede all other events.
    pub(super) fn is_open(&self) -> bool {
        self.calls.get(self.current).is_some_and(|call| call.shown && !call.is_whole())
    }

    /// Adds the next piece.
    ///
    /// # Errors
    /// Fails for arguments of a call that never began, and if a limit is exceeded.
    pub(super) fn piece(
        &mut self,
        piece: CallPiece<'_>,
        target: &mut CallSink<'_>,
    ) -> Result<(), ReplyFault> {
        let at = match self.find(&piece, target.notes) {
            Some(at) => at,
            None if piece.name.is_empty() && piece.id.is_empty() => {
                let message = format!("arguments of call {:?}, which never began", piece.key);
                return Err(ReplyFault::new(FaultKind::UnknownCall, message));
            }
            None if self.calls.len() >= MOST_CALLS => {
                let message = format!("more than {MOST_CALLS} tool calls");
                return Err(ReplyFault::new(FaultKind::TooMuchHeld, message));
            }
            None => self.begin(piece.key, target.notes),
        };
        let current = self.current;
        let Some(call) = self.calls.get_mut(at) else { return Ok(()) };
        for (slot, given) in [(&mut call.name, piece.name), (&mut call.id, piece.id)] {
            if slot.is_empty() {
                given.clone_into(slot);
                self.named = self.named.saturating_add(given.len());
            }
        }
        if self.named > MOST_NAMED {
            let message = format!("names and ids of tool calls of more than {MOST_NAMED} bytes");
            return Err(ReplyFault::new(FaultKind::TooMuchHeld, message));
        }
        if at < current || call.is_whole() {
            if !piece.arguments.trim().is_empty() {
                target.notes.add(FaultKind::ExtraArguments, || {
                    format!("{} bytes after the arguments of call {at} were whole", piece.arguments.len())
                });
            }
            return Ok(());
        }
        call.waiting.push_str(piece.arguments);
        self.held = self.held.saturating_add(piece.arguments.len());
        self.go_on(target, false);
        if self.held > MOST_HELD {
            let message = format!("{} bytes of tool calls wait for others to end", self.held);
            return Err(ReplyFault::new(FaultKind::TooMuchHeld, message));
        }
        Ok(())
    }

    /// Returns the call that a piece belongs to. `None` if the piece begins a new call.
    fn find(&self, piece: &CallPiece<'_>, notes: &mut FaultNotes) -> Option<usize> {
        let by_id = || self.calls.iter().rposition(|call| call.id == piece.id);
        match piece.key {
            Some(_) => {
                let at = self.calls.iter().rposition(|call| call.key == piece.key)?;
                let call = self.calls.get(at)?;
                let another = !piece.id.is_empty() && !call.id.is_empty() && call.id != piece.id;
                if another && !piece.name.is_empty() {
                    notes.add(FaultKind::OutOfOrder, || format!("two calls have the index {:?}", piece.key));
                    return by_id();
                }
                Some(at)
            }
            None if !piece.id.is_empty() => by_id(),
            None if !piece.name.is_empty() => None,
            None => self.calls.len().checked_sub(1),
        }
    }

    fn begin(&mut self, key: Option<u64>, notes: &mut FaultNotes) -> usize {
        let at = self.calls.len();
        if key.is_some_and(|key| key != at as u64) {
            notes.add(FaultKind::OutOfOrder, || format!("call {at} has the index {key:?}"));
        }
        let (id, name, waiting) = (String::new(), String::new(), String::new());
        self.calls.push(PartialCall {
            key,
            id,
            name,
            waiting,
            shown: false,
            over: false,
            extent: JsonExtent::default(),
        });
        at
    }

    /// Emits the waiting pieces of the current call, and of the next calls once it is whole. At the end, emits all
    /// pieces.
    fn go_on(&mut self, target: &mut CallSink<'_>, at_end: bool) {
        while let Some(call) = self.calls.get(self.current) {
            if !call.shown {
                if call.name.is_empty() {
                    return;
                }
                self.show(target);
            }
            let last = self.current + 1 >= self.calls.len();
            let Some(call) = self.calls.get_mut(self.current) else { break };
            let over = at_end || call.over;
            if !call.waiting.is_empty() || (over && !call.extent.begun) {
                let mut fragment = std::mem::take(&mut call.waiting);
                self.held = self.held.saturating_sub(fragment.len());
                if over && !call.extent.begun && fragment.trim().is_empty() {
                    // Missing arguments become an empty object, because the joined text must be JSON.
                    fragment = "{}".to_owned();
                }
                call.extent.take(&fragment);
                let (choice, index) = (target.choice, u32::try_from(self.current).unwrap_or(u32::MAX));
                target.out.push(ReplyEvent::ToolCallArguments { choice, index, fragment });
            }
            if !at_end && (last || !call.is_whole()) {
                break;
            }
            self.current += 1;
        }
    }

    /// Emits the start of the current call.
    fn show(&mut self, target: &mut CallSink<'_>) {
        let index = u32::try_from(self.current).unwrap_or(u32::MAX);
        let (before, rest) = self.calls.split_at_mut(self.current);
        let Some(call) = rest.first_mut() else { return };
        let taken = before.iter().any(|earlier| earlier.id == call.id);
        if call.id.is_empty() || taken {
            target.notes.add(FaultKind::CallIdMade, || format!("call {index} has no id of its own"));
        }
        let id = if call.id.is_empty() || taken {
            made_id(target.seed, target.choice, index)
        } else {
            call.id.clone()
        };
        call.shown = true;
        let (choice, name) = (target.choice, call.name.clone());
        target.out.push(ReplyEvent::ToolCallStart { choice, index, id, name });
    }

    /// Marks a call as complete.
    pub(super) fn over(&mut self, key: Option<u64>, target: &mut CallSink<'_>) {
        if let Some(call) = self.calls.iter_mut().rfind(|call| call.key == key) {
            call.over = true;
            self.go_on(target, false);
        }
    }

    /// Ends the answer and emits the waiting pieces.
    ///
    /// # Errors
    /// Fails if the name of a call never came.
    pub(super) fn end(&mut self, target: &mut CallSink<'_>) -> Result<(), ReplyFault> {
        if let Some(at) = self.calls.iter().position(|call| call.name.is_empty()) {
            let message = format!("call {at} has no name");
            return Err(ReplyFault::new(FaultKind::CallWithoutName, message));
        }
        self.go_on(target, true);
        Ok(())
    }
}

/// Generates an id for a call that has none. It differs from the ids of other answers as far as the answer's id does.
fn made_id(seed: &str, choice: u32, index: u32) -> String {
    let letters: Vec<char> = seed.chars().filter(char::is_ascii_alphanumeric).collect();
    let kept = letters.len().saturating_sub(SEED_BYTES);
    let seed: String = letters.into_iter().skip(kept).collect();
    format!("call_{seed}_{choice}_{index}")
}

/// Tracks whether a JSON object or list in pieces is complete.
#[derive(Debug, Default)]
struct JsonExtent {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// A character other than white space came.
    begun: bool,
    /// An object or list began.
    opened: bool,
}

impl JsonExtent {
    const fn is_whole(&self) -> bool {
        self.opened && self.depth == 0
    }

    fn take(&mut self, text: &str) {
        self.begun |= !text.trim().is_empty();
        for byte in text.bytes() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => {
                    self.opened = true;
                    self.depth += 1;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }
}
