//! What of a file or document a request wants, and whether it wants it at all: conditions and ranges as Go's
//! `http.ServeContent` reads them.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, header};

/// Bytes of a content: where they begin, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub length: u64,
}

/// Why ranges cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeError {
    Invalid,
    /// All begin beyond the end.
    NoOverlap,
}

/// What the conditions of a request come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The ranges count where `ranges` is set.
    Content {
        ranges: bool,
    },
    NotModified,
    PreconditionFailed,
}

/// By what a content is told from what it was before.
#[derive(Debug, Clone, Copy, Default)]
pub struct Version<'a> {
    /// Without its quotes; a condition that names a tag is never met where there is none.
    pub tag: Option<&'a str>,
    /// In seconds since 1970, `None` where nobody knows.
    pub modified: Option<u64>,
}

/// What a request wants of a content; `reading` for GET and HEAD.
pub fn wanted(headers: &HeaderMap, reading: bool, version: Version<'_>) -> Wanted {
    let Version { tag, modified } = version;
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).filter(|v| !v.is_empty());
    let is_tag = |text: &str| tag.is_some() && text.strip_prefix('"').and_then(|t| t.strip_suffix('"')) == tag;
    let any = |tags: &str, weak: bool| {
        tags.split(',').map(str::trim).any(|one| {
            let one = if weak { one.strip_prefix("W/").unwrap_or(one) } else { one };
            one.starts_with('*') || is_tag(one)
        })
    };
    let date = |name| text(name).and_then(parse_http_date).zip(modified);
    let goes_on = match text(header::IF_MATCH) {
        Some(tags) => any(tags, false),
        None => date(header::IF_UNMODIFIED_SINCE).is_none_or(|(asked, modified)| modified <= asked),
    };
    if !goes_on {
        return Wanted::PreconditionFailed;
    }
    let known = match text(header::IF_NONE_MATCH) {
        Some(tags) => any(tags, true),
        None => reading && date(header::IF_MODIFIED_SINCE).is_some_and(|(asked, modified)| modified <= asked),
    };
    if known {
        return if reading { Wanted::NotModified } else { Wanted::PreconditionFailed };
    }
    let is_time = |at: &str| parse_http_date(at).is_some_and(|at| Some(at) == modified);
    let same = text(header::IF_RANGE).is_none_or(|at| !reading || is_tag(at) || is_time(at));
    Wanted::Content { ranges: same }
}

/// Whether a client knows a folder as it is; of a folder nothing but its time is compared.
pub fn is_known(headers: &HeaderMap, modified: Option<u64>) -> bool {
    let asked = headers.get(header::IF_MODIFIED_SINCE).and_then(|v| v.to_str().ok()).and_then(parse_http_date);
    asked.zip(modified).is_some_and(|(asked, modified)| modified <= asked)
}

/// The ranges of a header for a content of so many bytes; none for all of it.
///
/// # Errors
/// See [`RangeError`].
pub fn ranges(text: &str, size: u64) -> Result<Vec<Range>, RangeError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let list = text.strip_prefix("bytes=").ok_or(RangeError::Invalid)?;
    let (mut found, mut beyond) = (Vec::new(), false);
    for part in list.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (start, end) = part.split_once('-').ok_or(RangeError::Invalid)?;
        let (start, end) = (start.trim(), end.trim());
        let range = if start.is_empty() {
            let length = number(end)?.min(size);
            Range { start: size - length, length }
        } else {
            let start = number(start)?;
            if start >= size {
                beyond = true;
                continue;
            }
            let last = if end.is_empty() { size - 1 } else { number(end)? };
            if last < start {
                return Err(RangeError::Invalid);
            }
            Range { start, length: last.min(size - 1) - start + 1 }
        };
        found.push(range);
    }
    match (found.is_empty() && beyond, size) {
        // Some ask for a range of everything; of an empty file that is all.
        (true, 1..) => Err(RangeError::NoOverlap),
        _ if found.iter().fold(0_u64, |sum, r| sum.saturating_add(r.length)) > size => Ok(Vec::new()),
        _ => Ok(found),
    }
}

impl Range {
    /// The header that tells where a part of a content of so many bytes stands.
    pub fn placed(&self, size: u64) -> String {
        format!("bytes {}-{}/{size}", self.start, (self.start + self.length).saturating_sub(1))
    }
}

impl RangeError {
    /// Go's words, which are the body of the refusal.
    pub fn words(self) -> &'static str {
        match self {
            RangeError::Invalid => "invalid range\n",
            RangeError::NoOverlap => "invalid range: failed to overlap\n",
        }
    }
}

fn number(text: &str) -> Result<u64, RangeError> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let number = digits.parse::<i64>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    number.and_then(|n| u64::try_from(n).ok()).ok_or(RangeError::Invalid)
}

const HTTP_DATE: &[time::format_description::BorrowedFormatItem<'static>] = time::macros::format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

/// A time in seconds since 1970 in the form of HTTP.
pub fn http_date(seconds: u64) -> Option<String> {
    let at = time::OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()?;
    at.format(HTTP_DATE).ok()
}

fn parse_http_date(text: &str) -> Option<u64> {
    let at = time::PrimitiveDateTime::parse(text, HTTP_DATE).ok()?;
    u64::try_from(at.assume_utc().unix_timestamp()).ok()
}

/// Seconds since 1970.
pub fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(SystemTime::UNIX_EPOCH).ok().map(|d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn ranges_are_cut_to_the_file() {
        let of = |text: &str| ranges(text, 10).map(|all| all.iter().map(|r| (r.start, r.length)).collect::<Vec<_>>());
        assert_eq!(of("bytes=0-4"), Ok(vec![(0, 5)]));
        assert_eq!(of("bytes=5-"), Ok(vec![(5, 5)]));
        assert_eq!(of("bytes=-3"), Ok(vec![(7, 3)]));
        assert_eq!(of("bytes=0-1, 4-99"), Ok(vec![(0, 2), (4, 6)]));
        assert_eq!(of("bytes=20-30"), Err(RangeError::NoOverlap));
        assert_eq!((of("bytes="), of("bytes=0-,0-")), (Ok(vec![]), Ok(vec![])), "all of it");
        for wrong in ["bytes=5-2", "bytes=x", "bytes=-", "bytes=--1", "lines=1-2", "bytes=1-x"] {
            assert_eq!(of(wrong), Err(RangeError::Invalid), "{wrong}");
        }
        assert_eq!(ranges("bytes=0-9", 0), Ok(vec![]), "of nothing everything is all");
    }

    #[test]
    fn conditions_are_those_of_time_where_there_is_no_tag() {
        let at = |seconds| http_date(seconds).unwrap();
        let of = |name: HeaderName, value: &str| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())]);
            wanted(&headers, true, Version { tag: None, modified: Some(1_700_000_000) })
        };
        let (all, none) = (Wanted::Content { ranges: true }, Wanted::Content { ranges: false });
        assert_eq!(wanted(&HeaderMap::new(), true, Version::default()), all);
        assert_eq!(of(header::IF_MODIFIED_SINCE, &at(1_700_000_000)), Wanted::NotModified);
        assert_eq!(of(header::IF_MODIFIED_SINCE, &at(1_699_999_999)), all);
        assert_eq!(of(header::IF_UNMODIFIED_SINCE, &at(1_699_999_999)), Wanted::PreconditionFailed);
        assert_eq!((of(header::IF_MATCH, "\"x\""), of(header::IF_MATCH, "*")), (Wanted::PreconditionFailed, all));
        assert_eq!((of(header::IF_NONE_MATCH, "\"x\""), of(header::IF_NONE_MATCH, "*")), (all, Wanted::NotModified));
        assert_eq!((of(header::IF_RANGE, &at(1_700_000_000)), of(header::IF_RANGE, "\"x\"")), (all, none));
    }

    #[test]
    fn what_has_a_tag_is_known_by_it() {
        let of = |name: HeaderName, value: &str, reading: bool| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())]);
            wanted(&headers, reading, Version { tag: Some("A"), modified: Some(1_700_000_000) })
        };
        let (all, none) = (Wanted::Content { ranges: true }, Wanted::Content { ranges: false });
        assert_eq!(of(header::IF_NONE_MATCH, "\"B\", W/\"A\"", true), Wanted::NotModified);
        assert_eq!(of(header::IF_NONE_MATCH, "*", false), Wanted::PreconditionFailed);
        assert_eq!(of(header::IF_NONE_MATCH, "A", true), all);
        assert_eq!((of(header::IF_MATCH, "\"A\"", true), of(header::IF_MATCH, "*", true)), (all, all));
        assert_eq!(of(header::IF_MATCH, "W/\"A\"", true), Wanted::PreconditionFailed);
        let now = http_date(1_700_000_000).unwrap();
        assert_eq!(of(header::IF_MODIFIED_SINCE, &now, true), Wanted::NotModified);
        assert_eq!(of(header::IF_MODIFIED_SINCE, &now, false), all);
        assert_eq!((of(header::IF_RANGE, "\"A\"", true), of(header::IF_RANGE, "W/\"A\"", true)), (all, none));
    }
}
