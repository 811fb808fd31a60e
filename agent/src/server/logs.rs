//! Logs of a container from the file that the runtime writes ([`super::log_file`]).
//!
//! Files are read on threads of their own. Following waits for the file to change ([`super::log_watch`]) and ends with
//! the container, of which the pod's status tells. The runtime is asked after its writer closed the file, because the
//! status may come later, and rarely otherwise.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Frame;
use proto::api::core::v1::Pod;
use proto::time::{Timestamp, parse_rfc3339};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::answers::{Answer, bare, plain};
use super::log_file::{LogFile, Step, Wanted};
use super::log_watch::{ClosedNames, Follower, Heard, LogWatch};
use super::route::query_pairs;
use crate::pods::{FindError, Handle};

/// From the end of writing to the first question whether the container has ended; each pause after it is longer.
const AFTER_CLOSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Where the host gives no watch, the file is looked at this often; and a log that was rotated until the runtime has left it,
/// beside what is heard of it.
const UNWATCHED: Duration = Duration::from_secs(1);

/// Go's time without a value.
const YEAR_ONE: Timestamp = Timestamp { seconds: -62_135_596_800, nanos: 0 };

#[derive(Debug, Clone, Default, PartialEq)]
struct Options {
    previous: bool,
    wanted: Wanted,
}

enum Mistake {
    Decode,
    Invalid,
    /// A stream that only the gate gives.
    Stream(String),
}

impl Options {
    /// `split` is the gate PodLogsQuerySplitStreams.
    fn of(query: &str, now: Timestamp, split: bool) -> Result<Self, Mistake> {
        let mut options = Options::default();
        // As Go's decoder has it: any word but these is true, none too, and the first of repeated keys counts.
        let flag = |value: &str| value != "0" && !value.eq_ignore_ascii_case("false");
        let number = |value: &str| value.parse::<i64>().map_err(|_| Mistake::Decode);
        let mut seen: Vec<String> = Vec::new();
        let (mut tail, mut limit, mut seconds, mut stream) = (None, None, None, None);
        let mut pairs = query_pairs(query);
        // The old name of a parameter wins over the new one.
        if let Some(old) = pairs.iter().find(|(k, _)| k == "tail").map(|(_, v)| v.clone()).filter(|v| !v.is_empty()) {
            pairs.retain(|(k, _)| k != "tailLines");
            if old != "all" {
                pairs.push(("tailLines".into(), old));
            }
        }
        for (key, value) in pairs {
            if seen.contains(&key) {
                continue;
            }
            match key.as_str() {
                "follow" => options.wanted.follow = flag(&value),
                "previous" => options.previous = flag(&value),
                "timestamps" => options.wanted.timestamps = flag(&value),
                "tailLines" => tail = Some(number(&value)?),
                "limitBytes" => limit = Some(number(&value)?),
                "sinceSeconds" => seconds = Some(number(&value)?),
                "stream" => stream = Some(value),
                // The words for no time are one all the same, before everything.
                "sinceTime" if value.is_empty() || value == "null" => options.wanted.since = Some(YEAR_ONE),
                "sinceTime" => {
                    let time = parse_rfc3339(&value).map_err(|_| Mistake::Decode)?;
                    options.wanted.since = Some(time);
                }
                _ => {}
            }
            seen.push(key);
        }
        options.wanted.tail = tail.map(u64::try_from).transpose().map_err(|_| Mistake::Invalid)?;
        options.wanted.limit = match limit {
            Some(limit) if limit < 1 => return Err(Mistake::Invalid),
            limit => limit.and_then(|l| u64::try_from(l).ok()),
        };
        if let Some(seconds) = seconds {
            if seconds < 1 || options.wanted.since.is_some() {
                return Err(Mistake::Invalid);
            }
            options.wanted.since = Some(Timestamp { seconds: now.seconds.saturating_sub(seconds), ..now });
        }
        options.wanted.stream = match stream.as_deref() {
            None | Some("All") => None,
            Some("Stdout" | "Stderr") if options.wanted.tail.is_some() => return Err(Mistake::Invalid),
            Some(name @ ("Stdout" | "Stderr")) if !split => return Err(Mistake::Stream(name.into())),
            Some("Stdout") => Some("stdout"),
            Some("Stderr") => Some("stderr"),
            Some(_) => return Err(Mistake::Invalid),
        };
        Ok(options)
    }
}

pub(super) async fn serve(
    pods: &Handle,
    logs: &Arc<LogWatch>,
    (namespace, name, container): (&str, &str, &str),
    query: &str,
    split: bool,
) -> Response<Answer> {
    let options = Options::of(query, Timestamp::now(), split);
    let decode = || plain(StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#);
    let invalid = || plain(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#);
    let options = match options {
        Err(Mistake::Decode) => return decode(),
        Err(Mistake::Invalid) => return invalid(),
        other => other,
    };
    let pod = match pods.find(namespace, name, None).await {
        Ok(pod) => pod,
        Err(_) => return plain(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist")),
    };
    if pod.spec.as_ref().is_none_or(|s| crate::pod::spec::find_container(s, container).is_none()) {
        return plain(StatusCode::NOT_FOUND, format!("container {container:?} not found in pod {name:?}"));
    }
    let options = match options {
        Ok(options) => options,
        Err(Mistake::Decode) => return decode(),
        Err(Mistake::Invalid) => return invalid(),
        Err(Mistake::Stream(stream)) => {
            let why = format!(
                "unable to return the given log stream: {stream:?}. Please enable PodLogsQuerySplitStreams feature \
                 gate in kubelet"
            );
            return plain(StatusCode::BAD_REQUEST, why);
        }
    };
    // From here on the answer has no type of content, as if it had begun already.
    let id = match chosen(&pod, name, container, options.previous) {
        Ok(id) => id,
        Err(why) => return bare(StatusCode::BAD_REQUEST, why),
    };
    let info = match pods.container_by_id(&pod, &id).await {
        Ok(info) => info,
        Err(_) => return bare(StatusCode::OK, format!("unable to retrieve container logs for {id}")),
    };
    let (sender, receiver) = mpsc::channel(4);
    let job = Job {
        path: info.log_path,
        options,
        sender,
        pods: pods.clone(),
        logs: logs.clone(),
        pod,
        id: info.id,
        running: info.running,
    };
    tokio::spawn(job.run());
    Response::new(Pieces(receiver).boxed_unsync())
}

/// The container (`RUNTIME://ID`) whose log is meant, by what the pod's status says.
fn chosen(pod: &Pod, pod_name: &str, name: &str, previous: bool) -> Result<String, String> {
    let unknown = || format!("container {name:?} in pod {pod_name:?} is not available");
    let status = pod.status.as_ref().ok_or_else(unknown)?;
    let mut all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .chain(&status.ephemeral_container_statuses);
    let found = all.find(|c| c.name == name).ok_or_else(unknown)?;
    let id = |id: &String| (!id.is_empty()).then(|| id.clone());
    let last = found.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    let last_id = last.and_then(|t| id(&t.container_id));
    if previous {
        return last_id.ok_or_else(|| format!("previous terminated container {name:?} in pod {pod_name:?} not found"));
    }
    let state = found.state.clone().unwrap_or_default();
    let ended = || format!("container {name:?} in pod {pod_name:?} is terminated");
    if state.running.is_some() {
        return Ok(found.container_id.clone());
    }
    if let Some(terminated) = &state.terminated {
        // Where the next try did not come to be, the one before has the log.
        return id(&terminated.container_id).or(last_id).ok_or_else(ended);
    }
    if last.is_some() {
        return last_id.ok_or_else(ended);
    }
    let waits = format!("container {name:?} in pod {pod_name:?} is waiting to start");
    Err(match state.waiting.as_ref().map(|w| w.reason.as_str()) {
        Some("ErrImagePull") => format!("{waits}: image can't be pulled"),
        Some("ImagePullBackOff") => format!("{waits}: trying and failing to pull image"),
        Some(reason) => format!("{waits}: {reason}"),
        None => format!("{waits} - no logs yet"),
    })
}

pub(super) struct Pieces(pub mpsc::Receiver<Bytes>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// One answer under way.
struct Job {
    path: PathBuf,
    options: Options,
    sender: mpsc::Sender<Bytes>,
    pods: Handle,
    logs: Arc<LogWatch>,
    pod: Arc<Pod>,
    id: String,
    /// Whether the container ran when this began.
    running: bool,
}

/// What somebody who follows a log waits for.
struct Waiting {
    /// `None` where the host gives no watch.
    file: Option<Follower>,
    /// `None` when the pod is gone.
    statuses: Option<watch::Receiver<()>>,
    /// When the runtime is asked, and how long before it is asked again.
    ask: Instant,
    pause: Duration,
}

impl Job {
    async fn run(self) {
        if let Err(error) = self.copy().await {
            // The head of the answer is gone already; the kubelet writes such errors into the body too.
            let text = match error.kind() {
                std::io::ErrorKind::InvalidData => error.to_string(),
                _ => format!("failed to read log file {:?}: {error}", self.path.display().to_string()),
            };
            let _ = self.sender.send(text.into()).await;
        }
    }

    async fn copy(&self) -> std::io::Result<()> {
        let mut waiting = (self.options.wanted.follow && self.running).then(|| self.waiting());
        let (path, wanted) = (self.path.clone(), self.options.wanted.clone());
        let mut log = blocking(move || LogFile::open(path, wanted)).await?;
        loop {
            let step;
            let closed = waiting.as_ref().and_then(|waiting| waiting.file.as_ref()).map(Follower::closed_names);
            (log, step) = blocking(move || {
                let unheard = closed.as_ref().map(ClosedNames::unheard);
                let is_closed = closed.as_ref().map(|closed| |name: &OsStr| closed.has(name));
                let step = log.step(is_closed.as_ref().map(|f| f as &dyn Fn(&OsStr) -> bool))?;
                if let (Step::End, Some(closed), Some(unheard)) = (&step, &closed, unheard) {
                    closed.settle(unheard);
                }
                Ok((log, step))
            })
            .await?;
            match step {
                Step::Soon => tokio::select! {
                    () = change_over(&mut waiting) => {}
                    () = self.sender.closed() => return Ok(()),
                },
                Step::Enough => return Ok(()),
                Step::Text(text) => {
                    if !text.is_empty() && self.sender.send(text.into()).await.is_err() {
                        return Ok(());
                    }
                }
                Step::End => {
                    let Some(until) = &mut waiting else { return Ok(()) };
                    let ended = tokio::select! {
                        ended = self.wait(until) => ended,
                        () = self.sender.closed() => return Ok(()),
                    };
                    if ended {
                        // What came between the last read and the end is still to be sent.
                        waiting = None;
                    }
                }
            }
        }
    }

    fn waiting(&self) -> Waiting {
        let file = self.logs.follow(&self.path);
        let file =
            file.inspect_err(|error| tracing::debug!(%error, path = %self.path.display(), "a log is not watched"));
        let (file, statuses) = (file.ok(), Some(self.pods.follow(&self.pod)));
        let pause = if file.is_some() { LAST_PAUSE } else { UNWATCHED };
        let mut waiting = Waiting { file, statuses, ask: Instant::now(), pause };
        waiting.put_off();
        waiting
    }

    /// Returns when the file has to be looked at again; `true` when the container has ended. Cancel safe.
    async fn wait(&self, waiting: &mut Waiting) -> bool {
        loop {
            if self.pods.shown_running(&self.pod, &self.id) == Some(false) {
                return true;
            }
            tokio::select! {
                heard = heard(&waiting.file) => {
                    waiting.note(heard);
                    return false;
                }
                gone = told(&mut waiting.statuses) => {
                    if gone {
                        waiting.statuses = None;
                        waiting.ask = Instant::now();
                    }
                }
                () = tokio::time::sleep_until(waiting.ask) => {
                    waiting.put_off();
                    return !self.still_running().await;
                }
            }
        }
    }

    async fn still_running(&self) -> bool {
        match self.pods.container_by_id(&self.pod, &self.id).await {
            Ok(container) => container.running,
            Err(FindError::NoContainer(_)) => false,
            // It runs on without an answer.
            Err(_) => true,
        }
    }
}

impl Waiting {
    /// Of a file that was closed the runtime is asked soon.
    fn note(&mut self, heard: Heard) {
        if heard == Heard::Closed {
            self.pause = AFTER_CLOSE;
            self.put_off();
        }
    }

    /// Asks the runtime later, and the next time later still.
    fn put_off(&mut self) {
        self.ask = Instant::now() + self.pause;
        self.pause = (self.pause * 4).min(if self.file.is_some() { LAST_PAUSE } else { UNWATCHED });
    }
}

/// Waits for the runtime to write to a log that was rotated, or to leave it; for a while where nothing is heard.
async fn change_over(waiting: &mut Option<Waiting>) {
    let heard = async {
        match waiting {
            Some(waiting) => waiting.note(heard(&waiting.file).await),
            None => std::future::pending().await,
        }
    };
    let _ = tokio::time::timeout(UNWATCHED, heard).await;
}

async fn heard(file: &Option<Follower>) -> Heard {
    match file {
        Some(file) => file.heard().await,
        None => std::future::pending().await,
    }
}

/// Waits for a new status; `true` when there will be none any more.
async fn told(statuses: &mut Option<watch::Receiver<()>>) -> bool {
    match statuses {
        Some(statuses) => statuses.changed().await.is_err(),
        None => std::future::pending().await,
    }
}

/// Does something with files on a thread that may wait for them.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|broke| Err(std::io::Error::other(broke)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each follower looked every 20 ms while the runtime left a log that was rotated.
    #[tokio::test]
    async fn a_rotated_log_is_looked_at_when_something_is_heard_of_it() {
        let folder = std::env::temp_dir().join(format!("logs-change-over-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("0.log");
        let writer = std::fs::File::create(&path).unwrap();
        let file = Some(LogWatch::default().follow(&path).unwrap());
        let mut waiting = Some(Waiting { file, statuses: None, ask: Instant::now(), pause: LAST_PAUSE });
        let begun = Instant::now();
        change_over(&mut waiting).await;
        assert!(begun.elapsed() >= UNWATCHED, "nothing was to be heard");
        drop(writer);
        let asked_soon = |waiting: &Option<Waiting>| waiting.as_ref().is_some_and(|w| w.pause < LAST_PAUSE);
        for _ in 0..20 {
            if !asked_soon(&waiting) {
                change_over(&mut waiting).await;
            }
        }
        assert!(asked_soon(&waiting), "the end of writing was heard");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn options_are_read_as_go_reads_them() {
        let now = Timestamp { seconds: 1000, nanos: 7 };
        let of = |query| Options::of(query, now, false);
        assert!(matches!(of("tailLines=x"), Err(Mistake::Decode)));
        assert!(matches!(of("limitBytes=-1"), Err(Mistake::Invalid)));
        assert!(matches!(of("sinceSeconds=-1"), Err(Mistake::Invalid)));
        assert!(matches!(of("tail=all&timestamps=yes"), Ok(o) if o.wanted.timestamps && o.wanted.tail.is_none()));
        assert!(matches!(of("tailLines=1&tailLines=2"), Ok(o) if o.wanted.tail == Some(1)));
        assert!(matches!(of("timestamps=&follow=False"), Ok(o) if o.wanted.timestamps && !o.wanted.follow));
        assert!(matches!(of("tailLines=5&tail=2"), Ok(o) if o.wanted.tail == Some(2)));
        assert!(matches!(of("sinceTime=&sinceSeconds=5"), Err(Mistake::Invalid)));
        assert!(of("sinceTime=null").is_ok());
        assert!(matches!(of("stream=Stdout"), Err(Mistake::Stream(_))));
        assert!(matches!(of("stream=Stderr&tailLines=2"), Err(Mistake::Invalid)));
        assert!(matches!(Options::of("stream=Stderr", now, true), Ok(o) if o.wanted.stream == Some("stderr")));
        assert!(matches!(of("sinceSeconds=10"), Ok(o) if o.wanted.since == Some(Timestamp { seconds: 990, nanos: 7 })));
    }
}
