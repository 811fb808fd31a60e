//! `/logs/`: the files and folders below the node's log folder, as Go's file server shows them.
//!
//! Nothing outside of the folder is shown: neither by `..` nor through a symbolic link that leads out.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use service::content_ranges::{self, Range, RangeError, Version, Wanted};
use tokio::sync::mpsc;

use super::answers::{Answer, bare, text};
use super::listen::full;
use super::log_query;
use super::logs::Pieces;
use crate::backoff::random_below;
use crate::config::Configuration;

const FOLDER: &str = "/var/log";
const CHUNK: usize = 64 * 1024;
/// What the content of a file is guessed from.
const SNIFFED: usize = 512;

pub(super) async fn serve(
    config: &Configuration,
    path: &str,
    query: &str,
    request: &Request<Incoming>,
) -> Response<Answer> {
    let folder = Path::new(FOLDER);
    if config.enable_system_log_query
        && let Some(answer) = log_query::serve(folder, path, query, request.headers()).await
    {
        return answer;
    }
    below(folder, path, query, request.headers()).await
}

/// A path below `folder` that stays there.
///
/// # Errors
/// Why it cannot be used, in Go's words.
pub(super) fn inside(folder: &Path, name: &str) -> Result<PathBuf, String> {
    const ESCAPES: &str = "path escapes from parent";
    let mut depth = 0_i32;
    for part in Path::new(name).components() {
        depth += match part {
            Component::Normal(_) => 1,
            Component::CurDir => 0,
            Component::ParentDir => -1,
            Component::RootDir | Component::Prefix(_) => return Err(ESCAPES.into()),
        };
        if depth < 0 {
            return Err(ESCAPES.into());
        }
    }
    let plain = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    };
    let root = folder.canonicalize().map_err(plain)?;
    let found = root.join(name).canonicalize().map_err(plain)?;
    if found.starts_with(&root) { Ok(found) } else { Err(ESCAPES.into()) }
}

/// The file or folder at `path`; steps up end at `folder`.
pub(super) async fn below(folder: &Path, path: &str, query: &str, headers: &HeaderMap) -> Response<Answer> {
    let mut kept: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            name => kept.push(name),
        }
    }
    let (folder, name, as_folder) = (folder.to_owned(), kept.join("/"), path.is_empty() || path.ends_with('/'));
    let last = kept.last().map(|l| (*l).to_owned()).unwrap_or_default();
    let (query, headers) = (query.to_owned(), headers.clone());
    let work = move || {
        if last == "index.html" && !as_folder {
            return moved("./", &query);
        }
        let Ok(found) = inside(&folder, &name) else { return missing() };
        let Ok(metadata) = found.metadata() else { return missing() };
        match (metadata.is_dir(), as_folder) {
            (true, false) => moved(&format!("{last}/"), &query),
            (false, true) => moved(&format!("../{last}"), &query),
            (true, true) => match found.join("index.html") {
                index if index.is_file() => file(&index, &headers),
                _ => {
                    let modified = metadata.modified().ok().and_then(content_ranges::seconds);
                    let known = content_ranges::is_known(&headers, modified);
                    dated(if known { bare(StatusCode::NOT_MODIFIED, Bytes::new()) } else { listing(&found) }, modified)
                }
            },
            (false, false) => file(&found, &headers),
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| missing())
}

fn missing() -> Response<Answer> {
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn moved(place: &str, query: &str) -> Response<Answer> {
    let place = if query.is_empty() { place.to_owned() } else { format!("{place}?{query}") };
    let mut response = bare(StatusCode::MOVED_PERMANENTLY, Bytes::new());
    if let Ok(location) = HeaderValue::from_str(&place) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// An answer that tells when its file or folder was changed, in seconds since 1970.
fn dated(mut response: Response<Answer>, modified: Option<u64>) -> Response<Answer> {
    if let Some(Ok(value)) = modified.and_then(content_ranges::http_date).map(|text| HeaderValue::from_str(&text)) {
        response.headers_mut().insert(header::LAST_MODIFIED, value);
    }
    response
}

fn listing(folder: &Path) -> Response<Answer> {
    let Ok(entries) = folder.read_dir() else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "Error reading directory\n");
    };
    // By their bare names, before the slash of folders.
    let mut names: Vec<(String, &str)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let slash = if entry.file_type().is_ok_and(|t| t.is_dir()) { "/" } else { "" };
            Some((entry.file_name().to_string_lossy().into_owned(), slash))
        })
        .collect();
    names.sort_unstable();
    let mut page = String::from("<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n");
    for (name, slash) in names {
        let name = format!("{name}{slash}");
        page.push_str(&format!("<a href=\"{}\">{}</a>\n", as_link(&name), as_html(&name)));
    }
    page.push_str("</pre>\n");
    let mut response = bare(StatusCode::OK, page);
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, html);
    response
}

/// A name as Go writes it in a relative link.
fn as_link(name: &str) -> String {
    let mut out = String::new();
    // Before the first slash a colon would end a scheme.
    if name.split('/').next().is_some_and(|first| first.contains(':')) {
        out.push_str("./");
    }
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
            b'-' | b'_' | b'.' | b'~' | b'$' | b'&' | b'+' | b',' | b'/' | b':' | b';' | b'=' | b'@' => {
                out.push(char::from(byte));
            }
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    out
}

fn as_html(name: &str) -> String {
    let text = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&#34;").replace('\'', "&#39;")
}

/// One file, or the ranges of it that are asked for.
fn file(path: &Path, headers: &HeaderMap) -> Response<Answer> {
    let (Ok(mut open), Ok(metadata)) = (std::fs::File::open(path), path.metadata()) else { return missing() };
    let size = metadata.len();
    let modified = metadata.modified().ok().and_then(content_ranges::seconds);
    let dated = |response| dated(response, modified);
    let counts = match content_ranges::wanted(headers, true, Version { tag: None, modified }) {
        Wanted::NotModified => return dated(bare(StatusCode::NOT_MODIFIED, Bytes::new())),
        Wanted::PreconditionFailed => return dated(bare(StatusCode::PRECONDITION_FAILED, Bytes::new())),
        Wanted::Content { ranges } => ranges,
    };
    let asked = headers.get(header::RANGE).and_then(|v| v.to_str().ok()).filter(|_| counts).unwrap_or_default();
    let ranges = match content_ranges::ranges(asked, size) {
        Ok(ranges) => ranges,
        Err(error) => return unsatisfiable(error, size),
    };
    let content_type = content_type(path, &mut open);
    let placed = |range: &Range| range.placed(size);
    let mut response = Response::new(full(Bytes::new()));
    let out = response.headers_mut();
    out.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    out.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    let pieces = match ranges.as_slice() {
        [] => vec![Piece::File(Range { start: 0, length: size })],
        [one] => {
            if let Ok(value) = HeaderValue::from_str(&placed(one)) {
                out.insert(header::CONTENT_RANGE, value);
            }
            vec![Piece::File(*one)]
        }
        many => {
            let boundary = format!("{:08x}{:08x}", random_below(u32::MAX), random_below(u32::MAX));
            if let Ok(kind) = HeaderValue::from_str(&format!("multipart/byteranges; boundary={boundary}")) {
                out.insert(header::CONTENT_TYPE, kind);
            }
            let mut pieces = Vec::with_capacity(2 * many.len() + 1);
            for (at, range) in many.iter().enumerate() {
                let line = if at == 0 { "" } else { "\r\n" };
                pieces.push(Piece::Text(format!(
                    "{line}--{boundary}\r\nContent-Range: {}\r\nContent-Type: {content_type}\r\n\r\n",
                    placed(range)
                )));
                pieces.push(Piece::File(*range));
            }
            pieces.push(Piece::Text(format!("\r\n--{boundary}--\r\n")));
            pieces
        }
    };
    out.insert(header::CONTENT_LENGTH, HeaderValue::from(pieces.iter().map(Piece::length).sum::<u64>()));
    *response.status_mut() = if ranges.is_empty() { StatusCode::OK } else { StatusCode::PARTIAL_CONTENT };
    let (sender, receiver) = mpsc::channel(4);
    tokio::task::spawn_blocking(move || {
        for piece in pieces {
            let sent = match piece {
                Piece::Text(text) => sender.blocking_send(text.into()).is_ok(),
                Piece::File(range) => send(&mut open, range, &sender),
            };
            if !sent {
                return;
            }
        }
    });
    dated(response.map(|_| Pieces(receiver).boxed_unsync()))
}

fn unsatisfiable(error: RangeError, size: u64) -> Response<Answer> {
    let mut refused = text(StatusCode::RANGE_NOT_SATISFIABLE, error.words());
    if error == RangeError::NoOverlap
        && let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}"))
    {
        refused.headers_mut().insert(header::CONTENT_RANGE, value);
    }
    refused
}

/// A part of an answer.
enum Piece {
    Text(String),
    File(Range),
}

impl Piece {
    fn length(&self) -> u64 {
        match self {
            Piece::Text(text) => text.len() as u64,
            Piece::File(range) => range.length,
        }
    }
}

/// Sends so much of a file; what has been cut off meanwhile cannot be sent. Whether all was.
fn send(open: &mut std::fs::File, range: Range, sender: &mpsc::Sender<Bytes>) -> bool {
    let mut left = range.length;
    if open.seek(SeekFrom::Start(range.start)).is_err() {
        return false;
    }
    while left > 0 {
        let mut chunk = vec![0; CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
        let Ok(count @ 1..) = open.read(&mut chunk) else { return false };
        chunk.truncate(count);
        left -= count as u64;
        if sender.blocking_send(chunk.into()).is_err() {
            return false;
        }
    }
    true
}

/// By the name's end, else by what the file begins with.
fn content_type(path: &Path, open: &mut std::fs::File) -> &'static str {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    match extension.to_ascii_lowercase().as_str() {
        "log" => "text/x-log; charset=utf-8",
        "txt" => "text/plain; charset=utf-8",
        "htm" | "html" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" => "application/json",
        "xml" => "text/xml; charset=utf-8",
        "gz" => "application/gzip",
        "xz" => "application/x-xz",
        _ => {
            let mut head = [0; SNIFFED];
            let count = open.read(&mut head).unwrap_or(0);
            let head = head.get(..count).unwrap_or_default();
            // What no text holds.
            let binary = |b: &u8| matches!(b, 0..=8 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
            match head {
                [0x1f, 0x8b, 8, ..] => "application/x-gzip",
                head if head.iter().any(binary) => "application/octet-stream",
                _ => "text/plain; charset=utf-8",
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        let path = std::env::temp_dir().join(format!("node-agent-logs-{}", crate::backoff::random_below(u32::MAX)));
        std::fs::create_dir_all(path.join("ne/sub")).unwrap();
        std::fs::write(path.join("ne/a.log"), "line one\nline two\n").unwrap();
        std::os::unix::fs::symlink("/etc", path.join("out")).unwrap();
        path
    }

    async fn get(folder: &Path, path: &str) -> (u16, String, String) {
        let answer = below(folder, path, "", &HeaderMap::new()).await;
        let status = answer.status().as_u16();
        let word = |name: header::HeaderName| answer.headers().get(name).and_then(|v| v.to_str().ok());
        let head = word(header::LOCATION).or(word(header::CONTENT_TYPE)).unwrap_or_default().to_owned();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, head, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn folders_are_listed_and_files_served() {
        let dir = folder();
        let (status, head, body) = get(&dir, "ne/a.log").await;
        assert_eq!((status, head.as_str()), (200, "text/x-log; charset=utf-8"));
        assert_eq!(body, "line one\nline two\n");
        assert_eq!(get(&dir, "ne").await, (301, "ne/".into(), String::new()));
        let (status, _, page) = get(&dir, "ne/").await;
        assert_eq!(status, 200);
        assert!(page.contains("<a href=\"a.log\">a.log</a>\n<a href=\"sub/\">sub/</a>\n</pre>"), "{page}");
        let listed = below(&dir, "ne/", "", &HeaderMap::new()).await;
        let changed = listed.headers()[header::LAST_MODIFIED].clone();
        let again = below(&dir, "ne/", "", &HeaderMap::from_iter([(header::IF_MODIFIED_SINCE, changed)])).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn ranges_are_served_alone_and_side_by_side() {
        let dir = folder();
        let asked = |range: &'static str| HeaderMap::from_iter([(header::RANGE, HeaderValue::from_static(range))]);
        for (range, length) in [("bytes=5-7", 3), ("bytes=0-3,9-", 0)] {
            let answer = below(&dir, "ne/a.log", "", &asked(range)).await;
            assert_eq!(answer.status(), StatusCode::PARTIAL_CONTENT);
            let told: usize = answer.headers()[header::CONTENT_LENGTH].to_str().unwrap().parse().unwrap();
            let kinds: Vec<_> = answer.headers().get_all(header::CONTENT_TYPE).iter().cloned().collect();
            assert_eq!(kinds.len(), 1, "{kinds:?}");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body.len(), told);
            if length > 0 {
                assert_eq!(body, "one");
                continue;
            }
            let boundary = kinds[0].to_str().unwrap().split("boundary=").nth(1).unwrap().to_owned();
            let part = |place: &str, text: &str| {
                format!(
                    "--{boundary}\r\nContent-Range: bytes {place}/18\r\nContent-Type: text/x-log; charset=utf-8\r\n\r\n{text}\r\n"
                )
            };
            let whole = format!("{}{}--{boundary}--\r\n", part("0-3", "line"), part("9-17", "line two\n"));
            assert_eq!(String::from_utf8_lossy(&body), whole);
        }
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[tokio::test]
    async fn nothing_outside_of_the_folder_is_served() {
        let dir = folder();
        for path in ["../shadow", "out/hostname", "ne/../../../etc/passwd", "ne/none"] {
            assert_eq!(get(&dir, path).await.0, 404, "{path}");
        }
        assert_eq!(inside(&dir, "/ne/a.log"), Err("path escapes from parent".into()));
        assert_eq!(inside(&dir, "out/passwd"), Err("path escapes from parent".into()));
        assert!(inside(&dir, "ne/a.log").is_ok());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
