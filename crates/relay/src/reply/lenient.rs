//! Tolerant parsing of values as upstreams write them, without copies: text that may be null, absent or in parts, and
//! counts that may be invalid. A text of unknown shape reads as absent.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Largest count that every JSON reader keeps exactly: 2^53.
const MOST: u64 = 1 << 53;

/// A string. Whole numbers read as their digits, and values of other types as the empty string.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct LenientText<'a>(pub(super) Cow<'a, str>);

impl LenientText<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The string, unless it is empty.
    pub(super) fn given(&self) -> Option<&str> {
        Some(self.as_str()).filter(|text| !text.is_empty())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for LenientText<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = LenientText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(LenientText(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(LenientText(Cow::Owned(text.to_owned())))
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(LenientText::default())
            }
            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(LenientText::default())
            }
            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(LenientText(Cow::Owned(number.to_string())))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(LenientText(Cow::Owned(number.to_string())))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(LenientText::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(LenientText::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(LenientText::default())
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A message's content: a string, or parts of text and thinking (Mistral).
#[derive(Debug, Default)]
pub(super) struct LenientContent<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) reasoning: Cow<'a, str>,
}

#[derive(serde::Deserialize)]
struct LenientPart<'a> {
    #[serde(default, borrow)]
    text: LenientText<'a>,
    #[serde(default, borrow)]
    thinking: LenientContent<'a>,
    #[serde(default, borrow)]
    refusal: LenientText<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for LenientContent<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = LenientContent<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, parts or null")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(LenientContent { text: Cow::Borrowed(text), ..LenientContent::default() })
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(LenientContent { text: Cow::Owned(text.to_owned()), ..LenientContent::default() })
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(LenientContent::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut content = LenientContent::default();
                while let Some(part) = seq.next_element::<LenientPart<'de>>()? {
                    content.text.to_mut().push_str(part.text.as_str());
                    content.text.to_mut().push_str(part.refusal.as_str());
                    content.reasoning.to_mut().push_str(&part.thinking.text);
                }
                Ok(content)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A count, valid or not.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) enum LenientCount {
    #[default]
    Absent,
    Is(u64),
    /// Negative, a fraction, beyond 2^53, or not a number.
    Absurd,
}

impl LenientCount {
    pub(super) const fn given(self) -> Option<u64> {
        match self {
            Self::Is(count) => Some(count),
            Self::Absent | Self::Absurd => None,
        }
    }
}

impl<'de> Deserialize<'de> for LenientCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = LenientCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a count")
            }
            fn visit_u64<E>(self, number: u64) -> Result<LenientCount, E> {
                Ok(if number <= MOST { LenientCount::Is(number) } else { LenientCount::Absurd })
            }
            fn visit_i64<E>(self, number: i64) -> Result<LenientCount, E> {
                Ok(u64::try_from(number).map_or(LenientCount::Absurd, LenientCount::Is))
            }
            fn visit_f64<E>(self, number: f64) -> Result<LenientCount, E> {
                let whole = number.fract() == 0.0 && (0.0..=MOST as f64).contains(&number);
                Ok(if whole { LenientCount::Is(number as u64) } else { LenientCount::Absurd })
            }
            fn visit_unit<E>(self) -> Result<LenientCount, E> {
                Ok(LenientCount::Absent)
            }
            fn visit_bool<E>(self, _: bool) -> Result<LenientCount, E> {
                Ok(LenientCount::Absurd)
            }
            fn visit_str<E>(self, _: &str) -> Result<LenientCount, E> {
                Ok(LenientCount::Absurd)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LenientCount, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(LenientCount::Absurd)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LenientCount, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(LenientCount::Absurd)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The number of items in a list. `None` if there is no list.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct LenientLength(pub(super) Option<u64>);

impl<'de> Deserialize<'de> for LenientLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let list = Option::<Vec<IgnoredAny>>::deserialize(deserializer)?;
        Ok(Self(list.map(|list| list.len() as u64)))
    }
}

/// Limit in bytes for an upstream's name of a model, answer, tier or finish reason.
pub(super) const MOST_NAME_BYTES: usize = 512;
/// Limit for the items in all lists of one JSON text together. An empty object takes two bytes of JSON, but hundreds in
/// memory.
pub(super) const MOST_ITEMS: u32 = 8192;

thread_local! {
    /// Number of items read of the current JSON text. A text is read on one thread, without a pause.
    static ITEMS: Cell<u32> = const { Cell::new(0) };
}

/// Resets the item count for the next JSON text.
pub(super) fn text_begins() {
    ITEMS.set(0);
}

/// Whether the current JSON text has more items than the limit.
pub(super) fn has_too_many_items() -> bool {
    ITEMS.get() > MOST_ITEMS
}

/// A list, whose items count towards [`MOST_ITEMS`]. Empty if the field is absent.
#[derive(Debug)]
pub(super) struct LenientItems<T>(Vec<T>);

impl<T> Default for LenientItems<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for LenientItems<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for LenientItems<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = LenientItems<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list; of all lists, at most {MOST_ITEMS} items")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    ITEMS.set(ITEMS.get().saturating_add(1));
                    if has_too_many_items() {
                        return Err(serde::de::Error::invalid_length(items.len(), &self));
                    }
                    items.push(item);
                }
                Ok(LenientItems(items))
            }
        }
        deserializer.deserialize_seq(Reader(PhantomData))
    }
}

/// Reads a field whose presence alone counts, even if its value is null.
pub(super) fn is_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// Reads a list or an object. Null reads as the default.
pub(super) fn or_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
