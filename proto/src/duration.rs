//! Go's `time.Duration` text: `1h2m3.5s`, nanoseconds in 64 bits.

/// The text is no duration; worded as Go's `time.ParseDuration`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    #[error("time: missing unit in duration {0:?}")]
    NoUnit(String),
    #[error("time: unknown unit {1:?} in duration {0:?}")]
    UnknownUnit(String, String),
}

/// Reads a duration; the result is in nanoseconds.
///
/// # Errors
/// When the text has another form or the value does not fit 64 bits.
pub fn parse(text: &str) -> Result<i64, ParseError> {
    let invalid = || ParseError::Invalid(text.into());
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || number.len() > 30 {
            return Err(invalid());
        }
        let unit_end = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let nanos: i128 = match unit {
            "" => return Err(ParseError::NoUnit(text.into())),
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            other => return Err(ParseError::UnknownUnit(text.into(), other.into())),
        };
        let mut part = whole.bytes().try_fold(0i128, |sum, d| sum.checked_mul(10)?.checked_add(i128::from(d - b'0')));
        part = part.and_then(|p| p.checked_mul(nanos));
        let mut unit_left = nanos;
        for digit in fraction.bytes() {
            unit_left /= 10;
            part = part.map(|p| p + i128::from(digit - b'0') * unit_left);
        }
        total = part.and_then(|p| total.checked_add(p)).ok_or_else(invalid)?;
        rest = next;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| invalid())
}

/// Writes nanoseconds as Go prints them.
pub fn format(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let size = nanos.unsigned_abs();
    if size == 0 {
        return "0s".into();
    }
    if size < 1_000_000_000 {
        let (unit, name) = match size {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            _ => (1_000_000, "ms"),
        };
        return format!("{sign}{}{name}", with_fraction(size, unit));
    }
    let seconds = size / 1_000_000_000;
    let last = with_fraction(size % 60_000_000_000, 1_000_000_000);
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{sign}{last}s"),
        (0, minutes) => format!("{sign}{minutes}m{last}s"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{last}s"),
    }
}

/// `value / unit` with as many decimals as it takes.
fn with_fraction(value: u64, unit: u64) -> String {
    let rest = value % unit;
    if rest == 0 {
        return (value / unit).to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{rest:0width$}");
    format!("{}.{}", value / unit, digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_their_text() {
        for (from, to) in [
            ("0", "0s"),
            ("1m30s", "1m30s"),
            ("90s", "1m30s"),
            ("1.5h", "1h30m0s"),
            ("-2ms", "-2ms"),
            ("1500us", "1.5ms"),
            ("24h", "24h0m0s"),
            ("100ns", "100ns"),
            ("1h1ms", "1h0m0.001s"),
        ] {
            assert_eq!(parse(from).map(format), Ok(to.into()), "{from}");
        }
        for text in ["", "s", "1", "1x", "1.2.3s", "9999999h", "-"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
