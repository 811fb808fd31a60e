//! `/logs/?query=`: what services of the node logged, by the journal or from their files below the log folder.
//!
//! Followed: kubelet `kubelet_server_journal.go`. A query with a slash names one file; others name services, asked of
//! the journal first. Nothing reaches a command but words that are checked here. What is found goes out as it is read.

mod asked;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use self::asked::{Options, Query};
use super::answers::{Answer, text};
use super::logs::Pieces;
use super::node_logs;

/// For a query with all of its services.
const PATIENCE: Duration = Duration::from_secs(30);
const CHUNK: usize = 32 * 1024;
/// Pieces that wait for a slow reader.
const AHEAD: usize = 4;
/// Names of units in a journal, which transient units add to.
const MAX_UNITS_TEXT: u64 = 8 << 20;

/// Answers a query below `folder`; `None` when there is none, or when it names neither service nor file.
pub(super) async fn serve(folder: &Path, path: &str, raw: &str, headers: &HeaderMap) -> Option<Response<Answer>> {
    let query = match Query::of(raw) {
        Ok(query) => query,
        Err(why) => return Some(text(StatusCode::BAD_REQUEST, format!("{why}\n"))),
    };
    if query == Query::default() {
        return None;
    }
    if !path.is_empty() && path != "/" {
        return Some(text(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode\n"));
    }
    if let Err(why) = query.check(folder) {
        return Some(text(StatusCode::NOT_ACCEPTABLE, format!("{why}\n")));
    }
    if let [file] = query.files.as_slice() {
        return Some(node_logs::below(folder, file, raw, headers).await);
    }
    if query.services.is_empty() {
        return None;
    }
    // Upstream's writer of journals looks for this one word.
    let packed = headers.get(header::ACCEPT_ENCODING).is_some_and(|asked| asked == "gzip");
    let (sender, receiver) = mpsc::channel(AHEAD);
    let mut out = Out { sender, packer: packed.then(|| GzEncoder::new(Vec::new(), Compression::fast())) };
    let folder = folder.to_owned();
    tokio::spawn(async move {
        // Nobody reads any more where this ends early.
        if tell(&query, &folder, &mut out).await.is_ok() {
            let _ = out.finish().await;
        }
    });
    let mut answer = Response::new(Pieces(receiver).boxed_unsync());
    if packed {
        answer.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain;charset=UTF-8"));
    Some(answer)
}

/// The reader has gone.
struct Gone;

/// Where an answer goes, packed or as it is.
struct Out {
    sender: mpsc::Sender<Bytes>,
    packer: Option<GzEncoder<Vec<u8>>>,
}

impl Out {
    async fn write(&mut self, bytes: &[u8]) -> Result<(), Gone> {
        let piece = match &mut self.packer {
            None => Bytes::copy_from_slice(bytes),
            // Writing to memory does not fail.
            Some(packer) => match packer.write_all(bytes) {
                Ok(()) => std::mem::take(packer.get_mut()).into(),
                Err(_) => return Err(Gone),
            },
        };
        if piece.is_empty() {
            return Ok(());
        }
        self.sender.send(piece).await.map_err(|_| Gone)
    }

    async fn finish(self) -> Result<(), Gone> {
        let Some(packer) = self.packer else { return Ok(()) };
        let last = packer.finish().map_err(|_| Gone)?;
        self.sender.send(last.into()).await.map_err(|_| Gone)
    }

    /// Writes what there is to read; a reader that fails has ended.
    async fn copy(&mut self, mut from: impl AsyncRead + Unpin) -> Result<(), Gone> {
        let mut chunk = vec![0; CHUNK];
        while let Ok(count @ 1..) = from.read(&mut chunk).await {
            self.write(&chunk[..count]).await?;
        }
        Ok(())
    }
}

/// Writes what the services of a query logged.
async fn tell(query: &Query, folder: &Path, out: &mut Out) -> Result<(), Gone> {
    let until = Instant::now() + PATIENCE;
    let units = timeout_at(until, units()).await.unwrap_or_default();
    // As the kubelet looks for them: the end of a unit's name is enough.
    let native = |service: &&str| units.contains(&format!("{service}.service"));
    let services = query.services.iter().map(String::as_str);
    let (native, files): (Vec<&str>, Vec<&str>) = services.partition(native);
    if !native.is_empty() {
        // The journal's tool is stopped when its time is over.
        if let Ok(told) = timeout_at(until, journal(&query.options, &native, out)).await {
            told?;
        }
    }
    if files.is_empty() {
        return Ok(());
    }
    if query.options != Options::default() {
        let files = files.join(" ");
        let told = format!(
            "\noptions present and query resolved to log files for [{files}]\ntry without specifying options\n"
        );
        return out.write(told.as_bytes()).await;
    }
    let copied = timeout_at(until, async {
        for service in files {
            service_file(folder, service, out).await?;
        }
        Ok(())
    });
    match copied.await {
        Ok(told) => told,
        Err(_) => out.write(b"\ncontext error: context deadline exceeded\n").await,
    }
}

/// The names of the journal's units, one a line; nothing where there is no journal.
async fn units() -> String {
    let mut command = Command::new("journalctl");
    command.args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    let Ok(mut child) = command.kill_on_drop(true).spawn() else { return String::new() };
    let Some(output) = child.stdout.take() else { return String::new() };
    let mut text = Vec::new();
    let read = output.take(MAX_UNITS_TEXT).read_to_end(&mut text).await;
    if read.is_err() || !child.wait().await.is_ok_and(|status| status.success()) {
        return String::new();
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// What the journal's tool is called with.
fn arguments(options: &Options, services: &[&str]) -> Vec<String> {
    let mut all = vec!["--utc".to_owned(), "--no-pager".to_owned()];
    let times = [("since", &options.since, &options.since_time), ("until", &options.until, &options.until_time)];
    for (name, date, time) in times {
        match time {
            _ if !date.is_empty() => all.push(format!("--{name}={date}")),
            // Of any zone; the journal's own tool knows only its own and this one.
            Some(time) => {
                let text = time.at.to_seconds_text().replace('T', " ").replace('Z', " UTC");
                all.push(format!("--{name}={text}"));
            }
            None => {}
        }
    }
    if let Some(lines) = options.tail {
        all.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
    }
    all.extend(services.iter().map(|service| format!("--unit={service}")));
    if !options.pattern.is_empty() {
        all.push(format!("--grep={}", options.pattern));
        all.push(format!("--case-sensitive={}", options.case_sensitive));
    }
    // Of every boot unless one is asked for.
    if let Some(boot) = options.boot {
        all.extend(["--boot".to_owned(), boot.to_string()]);
    }
    let output = if options.output.is_empty() { "short-precise" } else { &options.output };
    all.push(format!("--output={output}"));
    all
}

/// Writes what the journal's tool says, and what it complains of.
async fn journal(options: &Options, services: &[&str], out: &mut Out) -> Result<(), Gone> {
    let mut command = Command::new("journalctl");
    command.args(arguments(options, services));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(_) if options.boot.unwrap_or(0) == 0 => {
            return out.write(b"\nerror: journal output not available\n").await;
        }
        Err(_) => return Ok(()),
    };
    let (said, complained) = (child.stdout.take(), child.stderr.take());
    // Complaints are few: they wait in memory, those that there is room for, until the rest is out.
    let complaints = async {
        let mut text = Vec::new();
        if let Some(complained) = complained {
            let mut some = complained.take(CHUNK as u64);
            let _ = some.read_to_end(&mut text).await;
            let _ = tokio::io::copy(&mut some.into_inner(), &mut tokio::io::sink()).await;
        }
        text
    };
    let saying = async {
        match said {
            Some(said) => out.copy(said).await,
            None => Ok(()),
        }
    };
    let (told, complaints) = tokio::join!(saying, complaints);
    told?;
    if !complaints.is_empty() {
        out.write(&complaints).await?;
    }
    let _ = child.wait().await;
    Ok(())
}

/// Writes the file of a service, by the names that such files have.
async fn service_file(folder: &Path, service: &str, out: &mut Out) -> Result<(), Gone> {
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        let Ok(path) = node_logs::inside(folder, &name) else { continue };
        match open(path).await {
            Ok(Some(file)) => return out.copy(file).await,
            Ok(None) => {}
            Err(error) => {
                let told = format!("\nerror getting log for {service}: {error}\n");
                return out.write(told.as_bytes()).await;
            }
        }
    }
    out.write(format!("\nlog not found for {service}\n").as_bytes()).await
}

/// A file to read; `None` for a folder or nothing.
async fn open(path: PathBuf) -> std::io::Result<Option<tokio::fs::File>> {
    match tokio::fs::metadata(&path).await {
        Ok(metadata) if metadata.is_dir() => Ok(None),
        Ok(_) => tokio::fs::File::open(&path).await.map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_asked_for_what_the_query_names_and_no_more() {
        let of = |raw: &str| arguments(&Query::of(raw).expect("good").options, &["a", "b"]).join(" ");
        assert_eq!(of(""), "--utc --no-pager --unit=a --unit=b --output=short-precise");
        assert_eq!(
            of("sinceTime=2020-01-01T02:00:00%2B02:00&tailLines=5&pattern=x&boot=-1"),
            "--utc --no-pager --since=2020-01-01 00:00:00 UTC --pager-end --lines=5 --unit=a --unit=b --grep=x \
             --case-sensitive=false --boot -1 --output=short-precise"
        );
        assert_eq!(
            of("since=-1h&until=2020-1-1+0:0:0&grep=x&case-sensitive=t&output=cat&boot=0"),
            "--utc --no-pager --since=-1h --until=2020-1-1 0:0:0 --unit=a --unit=b --grep=x --case-sensitive=true --boot 0 \
             --output=cat"
        );
    }

    /// Status, type or place, and body.
    async fn get(folder: &Path, path: &str, raw: &str, headers: &HeaderMap) -> Option<(u16, String, Vec<u8>)> {
        let answer = serve(folder, path, raw, headers).await?;
        let word = |name: header::HeaderName| answer.headers().get(name).and_then(|v| v.to_str().ok());
        let head = word(header::LOCATION).or(word(header::CONTENT_TYPE)).unwrap_or_default().to_owned();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        Some((status, head, body.to_vec()))
    }

    #[tokio::test]
    async fn files_are_found_by_service_and_by_name_and_other_questions_are_none() {
        let folder = std::env::temp_dir().join(format!("log-query-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("svc/sub")).expect("made");
        std::fs::write(folder.join("svc/svc.log"), "line\n").expect("written");
        let none = HeaderMap::new();
        let text = |answer: Option<(u16, String, Vec<u8>)>| {
            let (status, _, body) = answer.expect("an answer");
            (status, String::from_utf8_lossy(&body).into_owned())
        };
        assert_eq!(
            text(get(&folder, "", "query=svc&query=nobody1", &none).await),
            (200, "line\n\nlog not found for nobody1\n".into())
        );
        let packed = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
        let (_, _, body) = get(&folder, "", "query=svc", &packed).await.expect("an answer");
        let mut plain = Vec::new();
        flate2::write::GzDecoder::new(&mut plain).write_all(&body).expect("packed");
        assert_eq!(plain, b"line\n");
        // The query stays with a folder that is named without its slash.
        let (status, place, _) = get(&folder, "", "query=svc/sub", &none).await.expect("an answer");
        assert_eq!((status, place.as_str()), (301, "sub/?query=svc/sub"));
        assert!(
            get(&folder, "", "tailLines=5", &none).await.is_none() && get(&folder, "a", "x=1", &none).await.is_none()
        );
        assert_eq!(text(get(&folder, "", "tailLines=x", &none).await).0, 400);
        assert_eq!(text(get(&folder, "", "tailLines=-1", &none).await).0, 406);
        let elsewhere = text(get(&folder, "svc/svc.log", "query=svc", &none).await);
        assert_eq!(elsewhere, (406, "path not allowed in query mode\n".into()));
        std::fs::remove_dir_all(folder).expect("ours");
    }
}
