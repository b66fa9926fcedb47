//! Reads objects and refuses duplicate keys. The keys of all open objects share one stack, so that a body allocates
//! memory for them once. Knows no dialect.

use std::borrow::Cow;
use std::collections::HashSet;

use headrace_domain::Code;

use super::{JsonReader, ValueKind};
use crate::fault::{FieldFault, Read};

/// For at most this number of keys, a scan is faster than hashing with a random hash.
const FEW_KEYS: usize = 16;

/// The keys of an object that has more.
type Many<'a> = HashSet<Cow<'a, str>>;

impl<'a> JsonReader<'a> {
    /// Reads an object. `each` reads the value under its key. Duplicate keys are a fault.
    pub fn object(&mut self, each: impl FnMut(&mut Self, &Cow<'a, str>) -> Read<()>) -> Read<()> {
        self.require(ValueKind::Object)?;
        self.enter()?;
        let open = self.keys.len();
        let read = if self.closes(b'}') { Ok(()) } else { self.members(open, each) };
        self.keys.truncate(open);
        read?;
        self.depth -= 1;
        Ok(())
    }

    fn members(
        &mut self,
        open: usize,
        mut each: impl FnMut(&mut Self, &Cow<'a, str>) -> Read<()>,
    ) -> Read<()> {
        let mut many = None;
        loop {
            self.skip_space();
            if self.byte() != Some(b'"') {
                return Err(self.syntax("a key in quotes must stand here"));
            }
            let key = self.string()?;
            if !self.is_new(open, &mut many, key.clone()) {
                return Err(FieldFault::at(&key, Code::DuplicateKey, "the object names this key twice"));
            }
            self.skip_space();
            if !self.eat(b':') {
                return Err(self.syntax("`:` must follow a key"));
            }
            each(self, &key).map_err(|fault| fault.under_key(&key))?;
            if self.separator(b'}')? {
                return Ok(());
            }
        }
    }

    /// Adds a key to the current object, whose keys are in `many` or in `self.keys` from `open` on. Returns whether it
    /// is new.
    #[inline]
    fn is_new(&mut self, open: usize, many: &mut Option<Many<'a>>, key: Cow<'a, str>) -> bool {
        if let Some(many) = many {
            return many.insert(key);
        }
        let few = self.keys.get(open..).unwrap_or_default();
        if few.contains(&key) {
            return false;
        }
        if few.len() == FEW_KEYS {
            *many = Some(self.keys.drain(open..).chain([key]).collect());
            return true;
        }
        if self.keys.capacity() == 0 {
            self.keys.reserve_exact(FEW_KEYS);
        }
        self.keys.push(key);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_has_keys_of_its_own_however_many_are_open() {
        let reads = |text: &str| {
            let mut reader = JsonReader::new(text.as_bytes(), 64, 10_000).unwrap();
            reader.skip().and_then(|()| reader.end()).map_err(|fault| fault.code())
        };
        for inner in [0, 1, FEW_KEYS - 1, FEW_KEYS, FEW_KEYS + 1, 3 * FEW_KEYS] {
            let object = |twice: Option<usize>| {
                let keys = (0..inner).chain(twice).map(|key| format!("\"k{key}\":1"));
                format!("{{{}}}", keys.collect::<Vec<_>>().join(","))
            };
            // The same keys in objects beside, inside and around each other.
            for outer in [1, FEW_KEYS, FEW_KEYS + 1] {
                let around = |inside: &str| {
                    let keys = (0..outer).map(|key| format!("\"k{key}\":[{inside},{inside}]"));
                    format!("{{{},\"last\":0}}", keys.collect::<Vec<_>>().join(","))
                };
                assert_eq!(reads(&around(&object(None))), Ok(()), "{inner} in {outer}");
                for twice in 0..inner {
                    assert_eq!(
                        reads(&around(&object(Some(twice)))),
                        Err("duplicate_key"),
                        "{twice} of {inner}"
                    );
                }
                let again = around("0").replace("\"last\"", "\"k0\"");
                assert_eq!(reads(&again), Err("duplicate_key"), "{again}");
            }
        }
    }
}
