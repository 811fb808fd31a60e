//! One line of a container's log, in the form of CRI (`RFC3339Nano stdout|stderr P|F text`) or of Docker's JSON files.
//!
//! Followed: `k8s.io/cri-client/pkg/logs`.

use std::borrow::Cow;

use proto::time::{Timestamp, parse_rfc3339};
use serde::Deserialize;

/// The form of a file's lines; its first line tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Cri,
    Docker,
}

/// A line taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    /// As it is written.
    pub time: Cow<'a, str>,
    pub at: Timestamp,
    /// `stdout` or `stderr`.
    pub stream: Cow<'a, str>,
    /// With its newline, unless the rest of it is in the next line or not written yet.
    pub text: Cow<'a, [u8]>,
    /// The rest of the text is in the next line.
    pub partial: bool,
}

#[derive(Deserialize)]
struct DockerLine<'a> {
    #[serde(default, borrow)]
    log: Cow<'a, str>,
    #[serde(default, borrow)]
    stream: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

impl Form {
    /// What the line is; `None` when it is neither.
    pub fn of(line: &[u8]) -> Option<Self> {
        [Self::Cri, Self::Docker].into_iter().find(|form| form.parse(line).is_some())
    }

    /// Takes a line apart, its newline included; `None` when it is of another form.
    pub fn parse(self, line: &[u8]) -> Option<Line<'_>> {
        match self {
            Self::Cri => cri(line),
            Self::Docker => docker(line),
        }
    }
}

fn cri(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(4, |b| *b == b' ');
    let time = std::str::from_utf8(fields.next()?).ok()?;
    let at = parse_rfc3339(time).ok()?;
    let stream = match fields.next()? {
        b"stdout" => "stdout",
        b"stderr" => "stderr",
        _ => return None,
    };
    let tags = fields.next()?;
    let mut text = fields.next()?;
    // More tags may follow the first.
    let partial = tags.split(|b| *b == b':').next() == Some(b"P");
    if partial {
        text = text.strip_suffix(b"\n").unwrap_or(text);
    }
    Some(Line { time: time.into(), at, stream: stream.into(), text: text.into(), partial })
}

fn docker(line: &[u8]) -> Option<Line<'_>> {
    let read: DockerLine<'_> = serde_json::from_slice(line).ok()?;
    let at = parse_rfc3339(&read.time).ok()?;
    let partial = !read.log.ends_with('\n');
    let text = match read.log {
        Cow::Borrowed(text) => text.as_bytes().into(),
        Cow::Owned(text) => text.into_bytes().into(),
    };
    Some(Line { time: read.time, at, stream: read.stream, text, partial })
}

/// Appends a time as clients get it: always nine digits of a second, `Z` where the offset is none.
pub(super) fn write_time(time: &str, out: &mut Vec<u8>) {
    // `2006-01-02T15:04:05` comes first, else it would not have been parsed.
    let (whole, rest) = time.split_at_checked(19).unwrap_or((time, ""));
    let digits = rest.strip_prefix(['.', ',']).unwrap_or("");
    let length = digits.bytes().take_while(u8::is_ascii_digit).count();
    let zone = if length == 0 { rest } else { &digits[length..] };
    out.extend_from_slice(whole.as_bytes());
    out.push(b'.');
    out.extend(digits.bytes().take(length).chain(std::iter::repeat(b'0')).take(9));
    let none = matches!(zone, "+00:00" | "-00:00");
    out.extend_from_slice(if none { b"Z" } else { zone.as_bytes() });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: &[u8]) -> Option<(String, String, bool)> {
        let line = Form::of(line)?.parse(line)?;
        Some((line.stream.into(), String::from_utf8_lossy(&line.text).into(), line.partial))
    }

    #[test]
    fn both_forms_are_taken_apart_and_nothing_else_is() {
        let said = |stream: &str, text: &str, partial| Some((stream.to_owned(), text.to_owned(), partial));
        assert_eq!(text(b"2020-01-01T00:00:00Z stdout F a b\n"), said("stdout", "a b\n", false));
        assert_eq!(text(b"2020-01-01T00:00:00.5+02:00 stderr P:later\n"), None, "no text after the tags");
        assert_eq!(text(b"2020-01-01T00:00:00.5+02:00 stderr P:later a part\n"), said("stderr", "a part", true));
        assert_eq!(text(b"2020-01-01T00:00:00Z stdout F \n"), said("stdout", "\n", false));
        assert_eq!(
            text(br#"{"log":"q\"\n","stream":"stderr","time":"2020-01-01T00:00:00.1Z"}"#),
            said("stderr", "q\"\n", false)
        );
        assert_eq!(
            text(br#"{"log":"half","stream":"stdout","time":"2020-01-01T00:00:00Z"}"#),
            said("stdout", "half", true)
        );
        for wrong in ["rubbish", "2020-01-01T00:00:00Z stdlog F x", "yesterday stdout F x", r#"{"log":"x"}"#] {
            assert_eq!(text(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn times_have_nine_digits() {
        let shown = |time| {
            let mut out = Vec::new();
            write_time(time, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(shown("2020-01-01T00:00:00Z"), "2020-01-01T00:00:00.000000000Z");
        assert_eq!(shown("2020-01-01T00:00:00.5+02:00"), "2020-01-01T00:00:00.500000000+02:00");
        assert_eq!(shown("2020-01-01T00:00:00.1234567890+00:00"), "2020-01-01T00:00:00.123456789Z");
    }
}
