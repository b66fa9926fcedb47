//! Numbers between bounds, as digit expressions. Knows only the bounds of a schema.

use serde_json::{Map, Value};

/// The largest number of 15 digits. A double represents every whole number up to it.
const LARGEST: i64 = 999_999_999_999_999;

/// The numbers that a schema allows.
pub(super) enum NumberRange {
    /// Any number with few digits.
    Any,
    /// The numbers that match an expression.
    These(String),
}

/// The numbers between the bounds of a schema. `None` if there are none, or none that can be written.
pub(super) fn between(map: &Map<String, Value>, whole: bool) -> Option<NumberRange> {
    let bound =
        |key: &str| map.get(key).and_then(Value::as_f64).filter(|bound| bound.abs() <= LARGEST as f64);
    let (least, above) = (bound("minimum"), bound("exclusiveMinimum"));
    let (most, below) = (bound("maximum"), bound("exclusiveMaximum"));
    if [least, above, most, below].iter().all(Option::is_none) {
        return Some(NumberRange::Any);
    }
    // As whole numbers, both ends included.
    let low = [least.map(f64::ceil), above.map(|above| above.floor() + 1.0)];
    let high = [most.map(f64::floor), below.map(|below| below.ceil() - 1.0)];
    let low = low.into_iter().flatten().fold(-(LARGEST as f64), f64::max) as i64;
    let high = high.into_iter().flatten().fold(LARGEST as f64, f64::min) as i64;
    let mut ways = Vec::new();
    if low <= high {
        ways.extend(wholes(low.max(0), high));
        ways.extend(wholes((-high).max(1), -low).map(|digits| format!("\"-\" {digits}")));
    }
    if !whole {
        // A fraction moves a number further from zero, and it must stay within the bounds.
        let fraction = "\".\" [0-9]{1,15}";
        let inner = high.saturating_sub(1).min(LARGEST);
        ways.extend(wholes(low.max(0), inner).map(|digits| format!("{digits} {fraction}")));
        ways.extend(
            wholes((-high).max(0), (-low).saturating_sub(1))
                .map(|digits| format!("\"-\" {digits} {fraction}")),
        );
        // Fractions below a whole exclusive maximum.
        if let Some(end) =
            below.filter(|end| end.fract() == 0.0 && *end > 0.0 && most.is_none_or(|most| most >= *end))
        {
            let last = end as i64 - 1;
            if last >= low {
                ways.push(format!("\"{last}\" {fraction}"));
            }
        }
        // Fractions above a whole exclusive minimum.
        if let Some(end) =
            above.filter(|end| end.fract() == 0.0 && *end >= 0.0 && least.is_none_or(|least| least <= *end))
        {
            let first = end as i64;
            if first < high || below.is_some_and(|below| below >= end + 1.0) {
                ways.push(format!("\"{first}.\" [0-9]{{0,14}} [1-9]"));
            }
        }
    }
    (!ways.is_empty()).then(|| NumberRange::These(format!("({})", ways.join(" | "))))
}

/// Whole numbers from `low`, which is not negative, to `high`. `None` if `low` is above `high`.
fn wholes(low: i64, high: i64) -> Option<String> {
    if low > high {
        return None;
    }
    let mut ways = Vec::new();
    let mut from = low;
    while from <= high {
        let digits = from.to_string();
        // The last number with as many digits.
        let end = "9".repeat(digits.len()).parse::<i64>().map_or(high, |last| last.min(high));
        ways.push(same_length(&digits, &end.to_string()));
        from = end.saturating_add(1);
    }
    Some(format!("({})", ways.join(" | ")))
}

/// Numbers from `low` to `high`, which have the same length.
fn same_length(low: &str, high: &str) -> String {
    let (Some(first), Some(last)) = (low.chars().next(), high.chars().next()) else { return String::new() };
    let (low_rest, high_rest) = (low.get(1..).unwrap_or_default(), high.get(1..).unwrap_or_default());
    let left = low_rest.len();
    let any = |from: char, to: char| {
        let head = if from == to { format!("\"{from}\"") } else { format!("[{from}-{to}]") };
        if left == 0 { head } else { format!("{head} [0-9]{{{left}}}") }
    };
    let opens = low_rest.chars().all(|digit| digit == '0');
    let closes = high_rest.chars().all(|digit| digit == '9');
    if opens && closes {
        return any(first, last);
    }
    if first == last {
        return format!("\"{first}\" ({})", same_length(low_rest, high_rest));
    }
    let (mut from, mut to) = (u32::from(first), u32::from(last));
    let (mut ways, mut tail) = (Vec::new(), None);
    if !opens {
        ways.push(format!("\"{first}\" ({})", same_length(low_rest, &"9".repeat(left))));
        from += 1;
    }
    if !closes {
        tail = Some(format!("\"{last}\" ({})", same_length(&"0".repeat(left), high_rest)));
        to -= 1;
    }
    if from <= to
        && let (Some(from), Some(to)) = (char::from_u32(from), char::from_u32(to))
    {
        ways.push(any(from, to));
    }
    ways.extend(tail);
    ways.join(" | ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Converts an expression into a regular expression.
    fn regex(is: &str) -> String {
        let is: String = is.chars().filter(|c| !matches!(c, ' ' | '"')).collect();
        format!("^(?:{})$", is.replace('.', "\\."))
    }

    #[test]
    fn whole_numbers_within_bounds_and_no_others() {
        for (low, high) in
            [(0, 0), (1, 9), (0, 10), (7, 123), (99, 101), (-5, 5), (-120, -99), (-1, 1500), (500, 2499)]
        {
            let map = json!({"minimum": low, "maximum": high});
            let Some(NumberRange::These(is)) = between(map.as_object().unwrap(), true) else {
                panic!("{low} {high}")
            };
            let takes = regex_lite(&regex(&is));
            for number in -200..3000 {
                assert_eq!(
                    takes(&number.to_string()),
                    (low..=high).contains(&number),
                    "{low}..{high}: {number} {is}"
                );
            }
            assert!(!takes("007") && !takes("-0"), "{is}");
        }
        assert!(between(json!({"minimum": 2, "maximum": 1}).as_object().unwrap(), true).is_none());
        assert!(matches!(between(&Map::new(), true), Some(NumberRange::Any)));
        assert!(matches!(
            between(json!({"minimum": -1e15, "maximum": 1e15}).as_object().unwrap(), false),
            Some(NumberRange::Any)
        ));
    }

    #[test]
    fn numbers_with_fractions_stay_within_their_bounds() {
        let rows = [
            json!({"minimum": 0, "maximum": 1}),
            json!({"exclusiveMinimum": 0}),
            json!({"minimum": -1.5, "exclusiveMaximum": 3}),
            json!({"exclusiveMinimum": 2, "exclusiveMaximum": 3}),
            json!({"minimum": -2, "maximum": -1}),
            json!({"maximum": 10, "exclusiveMinimum": 9}),
        ];
        for row in rows {
            let map = row.as_object().unwrap();
            let Some(NumberRange::These(is)) = between(map, false) else { panic!("{row}") };
            let takes = regex_lite(&regex(&is));
            let bound =
                |key: &str, ok: &dyn Fn(f64) -> bool| map.get(key).and_then(Value::as_f64).is_none_or(ok);
            let mut taken = 0;
            for thousandth in -4000..12000 {
                let number = f64::from(thousandth) / 1000.0;
                let within = bound("minimum", &|end| number >= end)
                    && bound("maximum", &|end| number <= end)
                    && bound("exclusiveMinimum", &|end| number > end)
                    && bound("exclusiveMaximum", &|end| number < end);
                let takes = takes(&number.to_string());
                assert!(within || !takes, "{row}: {number} {is}");
                taken += usize::from(takes);
            }
            assert!(taken > 900, "{row}: {taken} {is}");
        }
    }

    fn regex_lite(pattern: &str) -> impl Fn(&str) -> bool + use<> {
        let validator = jsonschema::validator_for(&json!({ "pattern": pattern })).unwrap();
        move |text| validator.is_valid(&json!(text))
    }
}
