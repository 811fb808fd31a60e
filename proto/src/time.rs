//! Points in time as the API writes them: RFC 3339 in UTC, whole seconds or microseconds.

use std::time::{SystemTime, UNIX_EPOCH};

/// A point in time: seconds since 1970 in UTC and nanoseconds within the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanos: u32,
}

/// The text is no RFC 3339 time; worded as Go's `time.Parse`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parsing time {text:?} as {whole:?}: cannot parse {rest:?} as {layout:?}")]
pub struct ParseError {
    text: String,
    /// The form of the whole.
    whole: &'static str,
    rest: String,
    layout: &'static str,
}

const SECONDS: &str = "2006-01-02T15:04:05Z07:00";
const MICROS: &str = "2006-01-02T15:04:05.000000Z07:00";

impl Timestamp {
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
    }

    /// `2026-01-31T23:59:59Z`.
    pub fn to_seconds_text(self) -> String {
        let (year, month, day) = civil(self.seconds.div_euclid(86_400));
        let rest = self.seconds.rem_euclid(86_400);
        if let Ok(year @ 0..=9999) = usize::try_from(year) {
            let two = |number: i64| [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
            let parts = [(year / 100) as i64, (year % 100) as i64, month, day, rest / 3600, rest / 60 % 60, rest % 60];
            let mut text = String::with_capacity(20);
            for (part, after) in parts.into_iter().zip(["", "-", "-", "T", ":", ":", "Z"]) {
                text.extend(two(part).map(char::from));
                text.push_str(after);
            }
            return text;
        }
        format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
    }

    /// `2026-01-31T23:59:59.000001Z`.
    pub fn to_micros_text(self) -> String {
        let mut text = self.to_seconds_text();
        text.truncate(text.len() - 1);
        text + &format!(".{:06}Z", self.nanos / 1000)
    }
}

/// Days since 1970 to year, month, day (proleptic Gregorian; Hinnant's algorithm).
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_index = (month + 9) % 12;
    let day_of_year = (153 * month_index + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Reads RFC 3339 with any offset and any fraction.
///
/// # Errors
/// When the text has another form or a part is out of range.
pub fn parse_rfc3339(text: &str) -> Result<Timestamp, ParseError> {
    parse(text, SECONDS, |scan| Ok(scan.fraction()))
}

/// Reads RFC 3339 with any offset and a fraction of exactly six digits, as `v1.MicroTime` is written.
///
/// # Errors
/// As [`parse_rfc3339`].
pub fn parse_micros(text: &str) -> Result<Timestamp, ParseError> {
    parse(text, MICROS, |scan| scan.micros())
}

fn parse(
    text: &str,
    whole: &'static str,
    fraction: impl FnOnce(&mut Scan<'_>) -> Result<u32, ParseError>,
) -> Result<Timestamp, ParseError> {
    let mut scan = Scan { text, whole, at: 0 };
    let year = scan.digits(4, "2006")?;
    scan.mark(b'-', "-")?;
    let month = scan.digits(2, "01")?;
    scan.mark(b'-', "-")?;
    let day = scan.digits(2, "02")?;
    scan.mark(b'T', "T")?;
    let hour = scan.digits(2, "15")?;
    scan.mark(b':', ":")?;
    let minute = scan.digits(2, "04")?;
    scan.mark(b':', ":")?;
    let second = scan.digits(2, "05")?;
    let nanos = fraction(&mut scan)?;
    let offset = scan.offset()?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let month_days = match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let valid = (1..=12).contains(&month) && (1..=month_days).contains(&day) && hour < 24 && minute < 60 && second < 60;
    if !valid {
        return Err(ParseError { text: text.into(), whole, rest: text.into(), layout: whole });
    }
    Ok(Timestamp { seconds: days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset, nanos })
}

struct Scan<'a> {
    text: &'a str,
    whole: &'static str,
    at: usize,
}

impl Scan<'_> {
    fn wrong(&self, layout: &'static str) -> ParseError {
        let rest = self.text.get(self.at..).unwrap_or_default().into();
        ParseError { text: self.text.into(), whole: self.whole, rest, layout }
    }

    fn digits(&mut self, count: usize, layout: &'static str) -> Result<i64, ParseError> {
        let part = self.text.as_bytes().get(self.at..self.at + count);
        let part = part.filter(|p| p.iter().all(u8::is_ascii_digit)).ok_or_else(|| self.wrong(layout))?;
        let value = part.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'));
        self.at += count;
        Ok(value)
    }

    fn mark(&mut self, mark: u8, layout: &'static str) -> Result<(), ParseError> {
        if self.text.as_bytes().get(self.at) != Some(&mark) {
            return Err(self.wrong(layout));
        }
        self.at += 1;
        Ok(())
    }

    fn fraction(&mut self) -> u32 {
        let bytes = self.text.as_bytes();
        if !matches!(bytes.get(self.at), Some(b'.' | b',')) || !bytes.get(self.at + 1).is_some_and(u8::is_ascii_digit) {
            return 0;
        }
        self.at += 1;
        let (mut nanos, mut unit) = (0, 100_000_000);
        while let Some(digit) = bytes.get(self.at).filter(|b| b.is_ascii_digit()) {
            nanos += u32::from(digit - b'0') * unit;
            unit /= 10;
            self.at += 1;
        }
        nanos
    }

    /// Six digits behind a point, in nanoseconds.
    fn micros(&mut self) -> Result<u32, ParseError> {
        let part = self.text.as_bytes().get(self.at..self.at + 7);
        let digits = part.and_then(|part| part.strip_prefix(b".").or_else(|| part.strip_prefix(b",")));
        let digits = digits.filter(|d| d.iter().all(u8::is_ascii_digit)).ok_or_else(|| self.wrong(".000000"))?;
        let micros = digits.iter().fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
        self.at += 7;
        Ok(micros * 1000)
    }

    /// Seconds east of UTC; nothing may follow.
    fn offset(&mut self) -> Result<i64, ParseError> {
        let sign = match self.text.as_bytes().get(self.at) {
            Some(b'Z') => 0,
            Some(b'+') => 1,
            Some(b'-') => -1,
            _ => return Err(self.wrong("Z07:00")),
        };
        self.at += 1;
        let mut offset = 0;
        if sign != 0 {
            offset = self.digits(2, "Z07:00")? * 3600;
            self.mark(b':', "Z07:00")?;
            offset += self.digits(2, "Z07:00")? * 60;
        }
        if self.at == self.text.len() { Ok(sign * offset) } else { Err(self.wrong("")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        for (from, to) in [
            ("2026-11-21T05:00:00Z", "2026-11-21T05:00:00Z"),
            ("2024-02-29T23:30:00-01:30", "2024-03-01T01:00:00Z"),
            ("1969-12-31T23:59:59.9Z", "1969-12-31T23:59:59Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z"),
        ] {
            assert_eq!(parse_rfc3339(from).map(Timestamp::to_seconds_text), Ok(to.into()));
        }
        assert_eq!(
            parse_rfc3339("2026-01-02T03:04:05.1234567Z").map(Timestamp::to_micros_text),
            Ok("2026-01-02T03:04:05.123456Z".into())
        );
    }

    #[test]
    fn micros_have_six_digits() {
        let micros = |text: &str| parse_micros(text).map(Timestamp::to_micros_text).map_err(|e| e.to_string());
        assert_eq!(micros("2026-01-01T01:00:00.000001+01:00"), Ok("2026-01-01T00:00:00.000001Z".into()));
        for (text, rest, layout) in [
            ("2026-01-01T00:00:00Z", "Z", ".000000"),
            ("2026-01-01T00:00:00.123Z", ".123Z", ".000000"),
            ("2026-01-01T00:00:00.1234567Z", "7Z", "Z07:00"),
        ] {
            let why = format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse {rest:?} as {layout:?}"
            );
            assert_eq!(micros(text), Err(why));
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "now",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01",
        ] {
            assert!(parse_rfc3339(text).is_err(), "{text}");
        }
    }
}
