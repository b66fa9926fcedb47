//! A service level objective, and whether a call met it. Does not know how a call was measured.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::{parse_duration, show_duration};

/// The bounds of a good call. A bound that is not set does not apply. A failed call is never good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slo {
    /// Maximum time to the first token, from when the call was due.
    pub ttft: Option<Duration>,
    /// Maximum mean time between the call's tokens.
    pub itl: Option<Duration>,
    /// Maximum single gap within the call.
    pub gap: Option<Duration>,
    /// Maximum time to the end, from when the call was due.
    pub e2e: Option<Duration>,
}

/// A call's measured times. `None` if the call has no such time: for example, an answer of one token has no gap.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CallFigures {
    pub(crate) ttft: Option<Duration>,
    pub(crate) itl: Option<Duration>,
    pub(crate) gap: Option<Duration>,
    pub(crate) e2e: Option<Duration>,
}

/// The bounds that a call missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BrokenBounds {
    pub(crate) ttft: bool,
    pub(crate) itl: bool,
    pub(crate) gap: bool,
    pub(crate) e2e: bool,
}

impl BrokenBounds {
    pub(crate) fn any(self) -> bool {
        self.ttft || self.itl || self.gap || self.e2e
    }
}

impl Slo {
    pub(crate) fn judge(&self, achieved: CallFigures) -> BrokenBounds {
        let over = |bound: Option<Duration>, time: Option<Duration>| {
            bound.zip(time).is_some_and(|(bound, time)| time > bound)
        };
        BrokenBounds {
            ttft: over(self.ttft, achieved.ttft),
            itl: over(self.itl, achieved.itl),
            gap: over(self.gap, achieved.gap),
            e2e: over(self.e2e, achieved.e2e),
        }
    }
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut slo = Self::default();
        for part in text.split(',') {
            let form = || format!("`{part}` is no bound: write it as ttft=500ms,itl=50ms,gap=1s,e2e=5s");
            let (name, time) = part.split_once('=').ok_or_else(form)?;
            let place = match name.trim() {
                "ttft" => &mut slo.ttft,
                "itl" | "tpot" => &mut slo.itl,
                "gap" => &mut slo.gap,
                "e2e" | "e2el" => &mut slo.e2e,
                _ => return Err(form()),
            };
            let time = parse_duration(time).map_err(|why| format!("{}: {why}", name.trim()))?;
            if place.replace(time).is_some() {
                return Err(format!("`{}` is given twice", name.trim()));
            }
        }
        Ok(slo)
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [("ttft", self.ttft), ("itl", self.itl), ("gap", self.gap), ("e2e", self.e2e)];
        let given = all.iter().filter_map(|(name, bound)| bound.map(|bound| (name, bound)));
        for (at, (name, bound)) in given.enumerate() {
            write!(f, "{}{name}={}", if at == 0 { "" } else { "," }, show_duration(bound))?;
        }
        Ok(())
    }
}

impl Serialize for Slo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        let text = "ttft=500ms,itl=50ms,gap=1s,e2e=5s";
        assert_eq!(text.parse::<Slo>().unwrap().to_string(), text);
        assert_eq!("tpot=5ms".parse::<Slo>().unwrap().to_string(), "itl=5ms");
        for (text, part) in [
            ("", "no bound"),
            ("ttft", "no bound"),
            ("p99=3s", "no bound"),
            ("ttft=soon", "ttft: it must"),
            ("ttft=1s,ttft=2s", "twice"),
            ("itl=1s,tpot=2s", "twice"),
        ] {
            let why = text.parse::<Slo>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn bounds_hold_to_the_very_end_and_what_is_not_there_breaks_none() {
        let ms = |ms| Some(Duration::from_millis(ms));
        let slo: Slo = "ttft=100ms,e2e=1s".parse().unwrap();
        let rows = [
            (CallFigures { ttft: ms(100), e2e: ms(1_000), ..CallFigures::default() }, (false, false)),
            (CallFigures { ttft: ms(101), e2e: ms(1_000), ..CallFigures::default() }, (true, false)),
            (CallFigures { ttft: ms(101), e2e: ms(1_001), itl: ms(9_999), gap: ms(9_999) }, (true, true)),
            (CallFigures::default(), (false, false)),
        ];
        for (achieved, (ttft, e2e)) in rows {
            let broken = slo.judge(achieved);
            assert_eq!(broken, BrokenBounds { ttft, e2e, ..BrokenBounds::default() }, "{achieved:?}");
            assert_eq!(broken.any(), ttft || e2e);
        }
    }
}
