//! Questions to the machine that may never be answered: a disk that hangs, a name service that is away.
//!
//! Each is asked in a thread of its own, one at a time. Who wants the answer waits a moment; later than that, what was
//! said last goes on to hold, and nobody waits again until the thread is back.

use std::time::Duration;

use tokio::task::JoinHandle;

/// A healthy file system answers in microseconds, a name service nearby in milliseconds.
const PATIENCE: Duration = Duration::from_millis(500);

/// One question.
pub struct Slow<T> {
    last: Option<T>,
    asking: Option<JoinHandle<T>>,
}

impl<T> Default for Slow<T> {
    fn default() -> Self {
        Slow { last: None, asking: None }
    }
}

impl<T: Send + 'static> Slow<T> {
    /// The newest answer there is; None before the first.
    pub async fn ask(&mut self, question: impl FnOnce() -> T + Send + 'static) -> Option<&T> {
        let late = self.asking.as_ref().is_some_and(|asking| !asking.is_finished());
        if !late {
            // What came too late to be heard is the newest, unless the next one is in time.
            self.hear(Duration::ZERO).await;
            self.asking = Some(tokio::task::spawn_blocking(question));
            self.hear(PATIENCE).await;
        }
        self.last.as_ref()
    }

    async fn hear(&mut self, patience: Duration) {
        let Some(asking) = &mut self.asking else { return };
        match tokio::time::timeout(patience, asking).await {
            Ok(Ok(answer)) => self.last = Some(answer),
            // It broke; the next one may not.
            Ok(Err(_)) => {}
            Err(_) => return,
        }
        self.asking = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_question_that_hangs_holds_nobody_and_is_asked_once() {
        let mut slow = Slow::default();
        assert_eq!(slow.ask(|| 1).await, Some(&1));
        let asked = Arc::new(AtomicU32::new(0));
        let (let_go, held) = mpsc::channel::<()>();
        let count = asked.clone();
        let hangs = move || {
            count.fetch_add(1, Ordering::Relaxed);
            let _ = held.recv();
            2
        };
        assert_eq!(slow.ask(hangs).await, Some(&1), "what was said last holds");
        let begun = Instant::now();
        for _ in 0..100 {
            let count = asked.clone();
            let again = move || {
                count.fetch_add(1, Ordering::Relaxed);
                3
            };
            assert_eq!(slow.ask(again).await, Some(&1));
        }
        assert!(begun.elapsed() < PATIENCE, "nobody waits for it again");
        assert_eq!(asked.load(Ordering::Relaxed), 1, "one thread at a time");
        let_go.send(()).unwrap();
        while slow.asking.as_ref().is_some_and(|asking| !asking.is_finished()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(slow.ask(|| 3).await, Some(&3), "it is asked again once the thread is back");
    }
}
