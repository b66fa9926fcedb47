//! Distributions of lengths and pauses, written as `128`, `uniform:64..256`, `normal:512,64`, `lognormal:400,0.6` or
//! `exp:2s`. Pure: a value is a function of the given random numbers.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::random::RunRandom;
use crate::{parse_duration, show_duration};

/// Maximum tokens of a planned prompt or answer. Bounds the memory of one call.
pub const MAX_TOKENS: u32 = 1 << 20;
/// Maximum planned pause.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);

/// A distribution of numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Always the same value.
    Constant(f64),
    /// Uniform between two values, both included.
    Uniform {
        /// The minimum.
        low: f64,
        /// The maximum.
        high: f64,
    },
    /// A normal distribution.
    Normal {
        /// The mean.
        mean: f64,
        /// The standard deviation.
        deviation: f64,
    },
    /// A lognormal distribution, which resembles the lengths of real prompts.
    Lognormal {
        /// The median.
        median: f64,
        /// Standard deviation of the natural logarithm, without a unit.
        sigma: f64,
    },
    /// An exponential distribution.
    Exponential {
        /// The mean.
        mean: f64,
    },
}

const FORMS: &str = "N, uniform:LOW..HIGH, normal:MEAN,DEVIATION, lognormal:MEDIAN,SIGMA or exp:MEAN";

impl Distribution {
    /// Parses a distribution. `unit` parses one number.
    fn parse(text: &str, unit: impl Fn(&str) -> Result<f64, String>) -> Result<Self, String> {
        let Some((kind, rest)) = text.split_once(':') else { return unit(text).map(Self::Constant) };
        let pair = |by: &str| {
            rest.split_once(by).ok_or_else(|| format!("`{kind}` takes two numbers; the forms are {FORMS}"))
        };
        let read = match kind.trim() {
            "uniform" => {
                let (low, high) = pair("..")?;
                let (low, high) = (unit(low)?, unit(high)?);
                if low > high {
                    return Err("the lower end comes first, as in uniform:64..256".to_owned());
                }
                Self::Uniform { low, high }
            }
            "normal" => {
                let (mean, deviation) = pair(",")?;
                Self::Normal { mean: unit(mean)?, deviation: unit(deviation)? }
            }
            "lognormal" => {
                let (median, sigma) = pair(",")?;
                let wrong = || "the second number of `lognormal` is a bare one, such as 0.6".to_owned();
                let sigma: f64 = sigma.trim().parse().map_err(|_| wrong())?;
                if !(0.0..=10.0).contains(&sigma) {
                    return Err("sigma of `lognormal` must lie between 0 and 10".to_owned());
                }
                Self::Lognormal { median: unit(median)?, sigma }
            }
            "exp" => Self::Exponential { mean: unit(rest)? },
            _ => return Err(format!("the forms are {FORMS}")),
        };
        Ok(read)
    }

    fn show(self, f: &mut fmt::Formatter<'_>, unit: impl Fn(f64) -> String) -> fmt::Result {
        match self {
            Self::Constant(value) => f.write_str(&unit(value)),
            Self::Uniform { low, high } => write!(f, "uniform:{}..{}", unit(low), unit(high)),
            Self::Normal { mean, deviation } => write!(f, "normal:{},{}", unit(mean), unit(deviation)),
            Self::Lognormal { median, sigma } => write!(f, "lognormal:{},{sigma}", unit(median)),
            Self::Exponential { mean } => write!(f, "exp:{}", unit(mean)),
        }
    }

    fn sample(self, random: &mut RunRandom) -> f64 {
        match self {
            Self::Constant(value) => value,
            Self::Uniform { low, high } => low + (high - low) * random.unit(),
            Self::Normal { mean, deviation } => mean + deviation * random.normal(),
            Self::Lognormal { median, sigma } => median * (sigma * random.normal()).exp(),
            Self::Exponential { mean } => mean * random.exponential(),
        }
    }

    /// Lower bound of the values, apart from rounding.
    fn least(self) -> f64 {
        match self {
            Self::Constant(value) => value,
            Self::Uniform { low, .. } => low,
            _ => 0.0,
        }
    }
}

/// Lengths in tokens. Samples outside 1 to [`MAX_TOKENS`] are clamped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLength(Distribution);

impl TokenLength {
    /// A constant length.
    pub fn constant(tokens: u32) -> Self {
        Self(Distribution::Constant(f64::from(tokens)))
    }

    /// The distribution of the lengths.
    pub fn distribution(self) -> Distribution {
        self.0
    }

    /// Lower bound of the lengths, in tokens.
    pub fn least(self) -> u32 {
        tokens(self.0.least())
    }

    pub(crate) fn sample(self, random: &mut RunRandom) -> u32 {
        match self.0 {
            // Whole numbers of tokens, with both ends as likely as any value between them.
            Distribution::Uniform { low, high } => {
                let (low, high) = (tokens(low), tokens(high));
                let span = u64::from(high.saturating_sub(low)).saturating_add(1);
                low.saturating_add(u32::try_from(random.below(span)).unwrap_or(0))
            }
            other => tokens(other.sample(random)),
        }
    }
}

fn tokens(value: f64) -> u32 {
    // A float cast saturates, and NaN becomes 0.
    (value.round() as u32).clamp(1, MAX_TOKENS)
}

fn token_count(text: &str) -> Result<f64, String> {
    let count: u32 =
        text.trim().parse().map_err(|_| format!("it is no number of tokens; the forms are {FORMS}"))?;
    match count {
        1..=MAX_TOKENS => Ok(f64::from(count)),
        _ => Err(format!("numbers of tokens lie between 1 and {MAX_TOKENS}")),
    }
}

impl FromStr for TokenLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Distribution::parse(text, token_count).map(Self)
    }
}

impl fmt::Display for TokenLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f, |value| value.to_string())
    }
}

impl Serialize for TokenLength {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Pauses between calls. Samples are clamped to between zero and one hour.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PauseLength(Distribution);

impl PauseLength {
    /// No pause.
    pub const NONE: Self = Self(Distribution::Constant(0.0));

    /// The distribution of the pauses, in seconds.
    pub fn distribution(self) -> Distribution {
        self.0
    }

    pub(crate) fn sample(self, random: &mut RunRandom) -> Duration {
        let seconds = self.0.sample(random).max(0.0);
        Duration::try_from_secs_f64(seconds).unwrap_or(MAX_PAUSE).min(MAX_PAUSE)
    }
}

impl FromStr for PauseLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = |text: &str| match parse_duration(text)? {
            time if time <= MAX_PAUSE => Ok(time.as_secs_f64()),
            _ => Err("pauses are at most an hour".to_owned()),
        };
        Distribution::parse(text, unit).map(Self)
    }
}

impl fmt::Display for PauseLength {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f, |value| show_duration(Duration::try_from_secs_f64(value).unwrap_or(MAX_PAUSE)))
    }
}

impl Serialize for PauseLength {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomStream;

    #[test]
    fn texts_are_read_and_shown_alike() {
        for text in ["128", "uniform:64..256", "normal:512,64", "lognormal:400,0.6", "exp:64"] {
            assert_eq!(text.parse::<TokenLength>().unwrap().to_string(), text);
        }
        for text in ["2s", "uniform:1s..3s", "normal:2s,500ms", "lognormal:2s,1", "exp:1500us", "0s"] {
            assert_eq!(text.parse::<PauseLength>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn faulty_texts_are_refused_with_the_way_out() {
        for (text, part) in [
            ("", "the forms are"),
            ("0", "between 1 and"),
            ("-3", "the forms are"),
            ("1.5", "the forms are"),
            ("2000000", "between 1 and"),
            ("uniform:9", "two numbers"),
            ("uniform:9..3", "lower end"),
            ("normal:5", "two numbers"),
            ("lognormal:5,x", "bare one"),
            ("lognormal:5,99", "between 0 and 10"),
            ("zipf:3", "the forms are"),
        ] {
            let why = text.parse::<TokenLength>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
        assert!("2h".parse::<PauseLength>().unwrap_err().contains("an hour"));
    }

    /// Mean, standard deviation, minimum and maximum of many draws.
    fn moments(length: &str) -> (f64, f64, u32, u32) {
        let length: TokenLength = length.parse().unwrap();
        let mut random = RunRandom::new(3, RandomStream::Lengths, 9);
        let values: Vec<u32> = (0..100_000).map(|_| length.sample(&mut random)).collect();
        let n = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
        (mean, variance.sqrt(), *values.iter().min().unwrap(), *values.iter().max().unwrap())
    }

    #[test]
    fn statistics() {
        assert_eq!(moments("128"), (128.0, 0.0, 128, 128));
        let (mean, sd, min, max) = moments("uniform:64..256");
        assert!((mean - 160.0).abs() < 1.0 && (sd - 55.7).abs() < 0.5, "{mean} {sd}");
        assert_eq!((min, max), (64, 256));
        let (mean, sd, ..) = moments("normal:512,64");
        assert!((mean - 512.0).abs() < 1.0 && (sd - 64.0).abs() < 1.0, "{mean} {sd}");
        // exp(σ²/2) times the median; √(exp(σ²) − 1) times that.
        let (mean, sd, ..) = moments("lognormal:400,0.6");
        assert!((mean / 478.9 - 1.0).abs() < 0.02 && (sd / 315.2 - 1.0).abs() < 0.04, "{mean} {sd}");
        let (mean, _, min, _) = moments("exp:64");
        assert!((mean - 64.0).abs() < 1.0 && min == 1, "{mean} {min}");
        assert_eq!(moments("normal:1,400").2, 1);
    }

    #[test]
    fn pauses_are_never_negative_nor_endless() {
        let mut random = RunRandom::new(3, RandomStream::Pauses, 0);
        for text in ["normal:1s,10s", "lognormal:1h,10", "exp:1h"] {
            let pause: PauseLength = text.parse().unwrap();
            assert!((0..10_000).all(|_| pause.sample(&mut random) <= MAX_PAUSE));
        }
        assert_eq!(PauseLength::NONE.sample(&mut random), Duration::ZERO);
    }
}
