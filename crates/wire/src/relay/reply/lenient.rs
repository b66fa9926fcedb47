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
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl Text<'_> {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The string, unless it is empty.
    pub(super) fn given(&self) -> Option<&str> {
        Some(self.as_str()).filter(|text| !text.is_empty())
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Text::default())
            }
            fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
                Ok(Text::default())
            }
            fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
            fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
                Ok(Text::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Text::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Text::default())
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// A message's content: a string, or parts of text and thinking (Mistral).
#[derive(Debug, Default)]
pub(super) struct Content<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) reasoning: Cow<'a, str>,
}

#[derive(serde::Deserialize)]
struct Part<'a> {
    #[serde(default, borrow)]
    text: Text<'a>,
    #[serde(default, borrow)]
    thinking: Content<'a>,
    #[serde(default, borrow)]
    refusal: Text<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Content<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Content<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, parts or null")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Content { text: Cow::Borrowed(text), ..Content::default() })
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Content { text: Cow::Owned(text.to_owned()), ..Content::default() })
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Content::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut content = Content::default();
                while let Some(part) = seq.next_element::<Part<'de>>()? {
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
pub(super) enum Count {
    #[default]
    Absent,
    Is(u64),
    /// Negative, a fraction, beyond 2^53, or not a number.
    Absurd,
}

impl Count {
    pub(super) const fn given(self) -> Option<u64> {
        match self {
            Self::Is(count) => Some(count),
            Self::Absent | Self::Absurd => None,
        }
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a count")
            }
            fn visit_u64<E>(self, number: u64) -> Result<Count, E> {
                Ok(if number <= MOST { Count::Is(number) } else { Count::Absurd })
            }
            fn visit_i64<E>(self, number: i64) -> Result<Count, E> {
                Ok(u64::try_from(number).map_or(Count::Absurd, Count::Is))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Count, E> {
                let whole = number.fract() == 0.0 && (0.0..=MOST as f64).contains(&number);
                Ok(if whole { Count::Is(number as u64) } else { Count::Absurd })
            }
            fn visit_unit<E>(self) -> Result<Count, E> {
                Ok(Count::Absent)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Count, E> {
                Ok(Count::Absurd)
            }
            fn visit_str<E>(self, _: &str) -> Result<Count, E> {
                Ok(Count::Absurd)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Count, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Count::Absurd)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Count, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Count::Absurd)
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The number of items in a list. `None` if there is no list.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Length(pub(super) Option<u64>);

impl<'de> Deserialize<'de> for Length {
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
pub(super) struct Items<T>(Vec<T>);

impl<T> Default for Items<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Deref for Items<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Items<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
            type Value = Items<T>;

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
                Ok(Items(items))
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
