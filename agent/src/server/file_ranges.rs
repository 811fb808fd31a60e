//! What of a file a request wants, and whether it wants it at all: conditions and ranges as Go's file server reads them.
//!
//! Files here have a time and no tag, so a condition that names a tag is never met.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, header};

/// Bytes of a file: where they begin, and how many there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub start: u64,
    pub length: u64,
}

/// Why ranges cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeError {
    Invalid,
    /// All begin beyond the end.
    NoOverlap,
}

/// What the conditions of a request come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The ranges count where `ranges` is set.
    File {
        ranges: bool,
    },
    NotModified,
    PreconditionFailed,
}

/// `modified` is in seconds since 1970, `None` where the file system does not tell.
pub(super) fn wanted(headers: &HeaderMap, modified: Option<u64>) -> Wanted {
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).filter(|v| !v.is_empty());
    let any = |tags: &str| tags.split(',').any(|tag| tag.trim().starts_with('*'));
    let date = |name| text(name).and_then(parse_http_date).zip(modified);
    let goes_on = match text(header::IF_MATCH) {
        Some(tags) => any(tags),
        None => date(header::IF_UNMODIFIED_SINCE).is_none_or(|(asked, modified)| modified <= asked),
    };
    if !goes_on {
        return Wanted::PreconditionFailed;
    }
    let known = match text(header::IF_NONE_MATCH) {
        Some(tags) => any(tags),
        None => date(header::IF_MODIFIED_SINCE).is_some_and(|(asked, modified)| modified <= asked),
    };
    if known {
        return Wanted::NotModified;
    }
    let same = text(header::IF_RANGE).is_none_or(|at| parse_http_date(at).is_some_and(|at| Some(at) == modified));
    Wanted::File { ranges: same }
}

/// Whether a client knows a folder as it is; of a folder nothing but its time is compared.
pub(super) fn is_known(headers: &HeaderMap, modified: Option<u64>) -> bool {
    let asked = headers.get(header::IF_MODIFIED_SINCE).and_then(|v| v.to_str().ok()).and_then(parse_http_date);
    asked.zip(modified).is_some_and(|(asked, modified)| modified <= asked)
}

/// The ranges of a header for a file of so many bytes; none for all of it.
///
/// # Errors
/// See [`RangeError`].
pub(super) fn ranges(text: &str, size: u64) -> Result<Vec<Range>, RangeError> {
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

fn number(text: &str) -> Result<u64, RangeError> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let number = digits.parse::<i64>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    number.and_then(|n| u64::try_from(n).ok()).ok_or(RangeError::Invalid)
}

const HTTP_DATE: &[time::format_description::BorrowedFormatItem<'static>] = time::macros::format_description!(
    "[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT"
);

pub(super) fn http_date(seconds: u64) -> Option<String> {
    let at = time::OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()?;
    at.format(HTTP_DATE).ok()
}

fn parse_http_date(text: &str) -> Option<u64> {
    let at = time::PrimitiveDateTime::parse(text, HTTP_DATE).ok()?;
    u64::try_from(at.assume_utc().unix_timestamp()).ok()
}

/// Seconds since 1970.
pub(super) fn seconds(time: SystemTime) -> Option<u64> {
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
    fn conditions_are_those_of_time_and_no_tag_is_met() {
        let at = |seconds| http_date(seconds).unwrap();
        let of = |name: HeaderName, value: &str| {
            let headers = HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())]);
            wanted(&headers, Some(1_700_000_000))
        };
        let (all, none) = (Wanted::File { ranges: true }, Wanted::File { ranges: false });
        assert_eq!(wanted(&HeaderMap::new(), None), all);
        assert_eq!(of(header::IF_MODIFIED_SINCE, &at(1_700_000_000)), Wanted::NotModified);
        assert_eq!(of(header::IF_MODIFIED_SINCE, &at(1_699_999_999)), all);
        assert_eq!(of(header::IF_UNMODIFIED_SINCE, &at(1_699_999_999)), Wanted::PreconditionFailed);
        assert_eq!((of(header::IF_MATCH, "\"x\""), of(header::IF_MATCH, "*")), (Wanted::PreconditionFailed, all));
        assert_eq!((of(header::IF_NONE_MATCH, "\"x\""), of(header::IF_NONE_MATCH, "*")), (all, Wanted::NotModified));
        assert_eq!((of(header::IF_RANGE, &at(1_700_000_000)), of(header::IF_RANGE, "\"x\"")), (all, none));
    }
}
