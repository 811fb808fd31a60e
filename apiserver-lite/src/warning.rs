//! Warnings that a request collects on its way and that clients show to people.
//!
//! Whatever works on a request may [`add`] one, however deep it is; the server puts them on the response as `Warning`
//! headers, in order and each once. Outside a request, such as in a controller's write, they are dropped.

use std::cell::RefCell;
use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;

use http::header::{HeaderMap, HeaderValue, WARNING};

/// Characters of all warnings of a response from which on each is cut.
const MOST: usize = 4096;
/// Characters that are left of each then.
const CUT: usize = 256;

tokio::task_local! {
    static COLLECTED: RefCell<Collected>;
}

#[derive(Default)]
struct Collected {
    texts: Vec<String>,
    /// The same, to find equal ones.
    told: HashSet<String>,
}

/// Warns whoever sent the request that is being worked on.
pub fn add(text: impl Into<String>) {
    let text = text.into();
    // No request, nobody to warn.
    let _ = COLLECTED.try_with(|all| {
        let mut all = all.borrow_mut();
        if all.told.insert(text.clone()) {
            all.texts.push(text);
        }
    });
}

/// Runs the work on a request; returns its outcome and what it warned of. Pinned by the caller: an `async fn` keeps two
/// copies of what it is given, and this work is large.
pub async fn collect<T>(work: Pin<&mut impl Future<Output = T>>) -> (T, Vec<String>) {
    COLLECTED
        .scope(RefCell::default(), async {
            let outcome = work.await;
            (outcome, COLLECTED.with(RefCell::take).texts)
        })
        .await
}

/// Keeps the `Warning` headers of a response within what clients and proxies read: what is too long in all is cut, and
/// what does not fit then is left out.
pub fn limit(headers: &mut HeaderMap) {
    // What another server said is passed on as it is.
    if !headers.get_all(WARNING).iter().all(|value| value.as_bytes().starts_with(b"299 - \"")) {
        return;
    }
    let all: Vec<(String, usize)> = headers.get_all(WARNING).iter().map(text_of).collect();
    if all.iter().map(|(_, length)| length).sum::<usize>() <= MOST {
        return;
    }
    headers.remove(WARNING);
    let mut written = 0;
    for (text, length) in all {
        if written >= MOST {
            break;
        }
        written += length.min(CUT);
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{}\"", cut(&text))) {
            headers.append(WARNING, value);
        }
    }
}

/// The text of a header, escapes in place, and how many characters it says.
fn text_of(value: &HeaderValue) -> (String, usize) {
    let shown = String::from_utf8_lossy(value.as_bytes()).into_owned();
    let text = shown.strip_prefix("299 - \"").and_then(|rest| rest.strip_suffix('"')).unwrap_or(&shown).to_owned();
    let length = pieces(&text).count();
    (text, length)
}

/// The first characters of an escaped text.
fn cut(text: &str) -> &str {
    &text[..pieces(text).take(CUT).last().unwrap_or(0)]
}

/// Where each character of an escaped text ends.
fn pieces(text: &str) -> impl Iterator<Item = usize> {
    let mut escaped = false;
    text.char_indices().filter_map(move |(at, character)| {
        escaped = character == '\\' && !escaped;
        (!escaped).then_some(at + character.len_utf8())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_warning_is_told_once_and_only_inside_a_request() {
        add("nobody hears this");
        let (outcome, warnings) = collect(std::pin::pin!(async {
            add("a");
            tokio::task::yield_now().await;
            add("b");
            add("a");
            7
        }))
        .await;
        assert_eq!((outcome, warnings), (7, vec!["a".to_owned(), "b".to_owned()]));
    }

    fn limited(texts: &[String]) -> Vec<String> {
        let mut response = crate::http::Response::new(crate::http::Body::empty());
        texts.iter().for_each(|text| crate::server::warn(&mut response, text));
        limit(response.headers_mut());
        let all = response.headers().get_all(WARNING).iter();
        all.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    }

    #[test]
    fn warnings_that_are_too_long_in_all_are_cut() {
        let fits = limited(&vec!["x".repeat(1024); 4]);
        assert!(fits.len() == 4 && fits.iter().all(|text| text.len() == "299 - \"\"".len() + 1024));
        let mut long = vec!["é".repeat(1024); 4];
        long.push("\"".repeat(257));
        let cut = limited(&long);
        assert_eq!(cut.len(), 5);
        assert_eq!(cut[0], format!("299 - \"{}\"", "é".repeat(256)));
        assert_eq!(cut[4], format!("299 - \"{}\"", "\\\"".repeat(256)), "an escape is one character");
        assert_eq!(limited(&vec!["x".repeat(300); 20]).len(), 16, "no more than fits");
    }

    #[test]
    fn what_fits_into_no_header_is_left_out() {
        let texts = ["", "a\tb", "c"].map(ToOwned::to_owned);
        assert_eq!(limited(&texts), ["299 - \"c\""]);
    }
}
