//! Warnings that a request collects on its way and that clients show to people.
//!
//! Whatever works on a request may [`add`] one, however deep it is; the server puts them on the response as `Warning`
//! headers, in order and each once. Outside a request, such as in a controller's write, they are dropped.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;

tokio::task_local! {
    static COLLECTED: RefCell<Vec<String>>;
}

/// Warns whoever sent the request that is being worked on.
pub fn add(text: impl Into<String>) {
    let text = text.into();
    // No request, nobody to warn.
    let _ = COLLECTED.try_with(|all| {
        let mut all = all.borrow_mut();
        if !all.contains(&text) {
            all.push(text);
        }
    });
}

/// Runs the work on a request; returns its outcome and what it warned of. Pinned by the caller: an `async fn` keeps two
/// copies of what it is given, and this work is large.
pub async fn collect<T>(work: Pin<&mut impl Future<Output = T>>) -> (T, Vec<String>) {
    COLLECTED
        .scope(RefCell::default(), async {
            let outcome = work.await;
            (outcome, COLLECTED.with(RefCell::take))
        })
        .await
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
}
