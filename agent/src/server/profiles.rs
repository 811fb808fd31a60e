//! `/debug/pprof`: where this process has its memory and spends its time, in the form that `go tool pprof` reads.
//!
//! There is no Go runtime here, so each profile is what the kernel tells of the same question, with the finest names that it
//! has: `goroutine` and `threadcreate` count threads by name; `heap` and `allocs` are resident bytes (`inuse`) and address
//! space (`alloc`) by mapping; `profile` is CPU time by thread. Contention is not sampled, so `block` and `mutex` hold
//! nothing, as in a kubelet that was not told to sample it.
//!
//! Followed: Go's `net/http/pprof`; pprof's `profile.proto`; proc(5).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use http::{HeaderValue, Response, StatusCode, header};
use prost::Message as _;

use super::answers::{Answer, bare, text};
use super::metrics_page::gzip;
use super::route::query_pairs;

/// Go's, where nobody says for how long.
const CPU_SECONDS: u64 = 30;
/// The kubelet's server gives up on answers after as long.
const LONGEST_SECONDS: u64 = 4 * 3600;
const TASKS: &str = "/proc/self/task";

/// What is counted, and its unit.
type Kind = (&'static str, &'static str);
/// Values by name, one for each kind.
type Samples = BTreeMap<String, Vec<i64>>;

/// A profile that can be taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    Threads(&'static str),
    Memory(&'static str),
    Contention(&'static str),
}

impl Profile {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "goroutine" => Profile::Threads("goroutine"),
            "threadcreate" => Profile::Threads("threadcreate"),
            "heap" => Profile::Memory("heap"),
            "allocs" => Profile::Memory("allocs"),
            "block" => Profile::Contention("block"),
            "mutex" => Profile::Contention("mutex"),
            _ => return None,
        })
    }

    fn kinds(self) -> Vec<Kind> {
        match self {
            Profile::Threads(name) => vec![(name, "count")],
            Profile::Memory(_) => vec![
                ("alloc_objects", "count"),
                ("alloc_space", "bytes"),
                ("inuse_objects", "count"),
                ("inuse_space", "bytes"),
            ],
            Profile::Contention(_) => vec![("contentions", "count"), ("delay", "nanoseconds")],
        }
    }

    fn take(self) -> Samples {
        match self {
            Profile::Threads(_) => threads(),
            Profile::Memory(_) => mappings(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default()),
            Profile::Contention(_) => Samples::new(),
        }
    }

    /// For people: Go's older form, with names in the place of addresses.
    fn page(self, samples: &Samples) -> String {
        let sum = |at: usize| samples.values().filter_map(|v| v.get(at)).sum::<i64>();
        // Growing memory does not fail.
        let mut page = String::new();
        let _ = match self {
            Profile::Threads(name) => writeln!(page, "{name} profile: total {}", sum(0)),
            Profile::Memory(_) => {
                writeln!(page, "heap profile: {}: {} [{}: {}] @ heap/0", sum(2), sum(3), sum(0), sum(1))
            }
            Profile::Contention("mutex") => writeln!(page, "--- mutex:\ncycles/second=1000000000\nsampling period=0"),
            Profile::Contention(_) => writeln!(page, "--- contention:\ncycles/second=1000000000"),
        };
        for (name, values) in samples {
            let _ = match values.as_slice() {
                [objects, space, used_objects, used_space] => {
                    writeln!(page, "{used_objects}: {used_space} [{objects}: {space}] @\n#\t{name}\n")
                }
                values => writeln!(page, "{} @\n#\t{name}\n", values.first().unwrap_or(&0)),
            };
        }
        page
    }
}

/// A profile by its name in the path.
pub(super) async fn answer(name: &str, query: &str) -> Response<Answer> {
    let pairs = query_pairs(query);
    let first = |name: &str| pairs.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str());
    if name == "profile" {
        return cpu(first("seconds")).await;
    }
    let Some(profile) = Profile::named(name) else { return refused(StatusCode::NOT_FOUND, "Unknown profile") };
    let mut samples = taken(move || profile.take()).await;
    let seconds = first("seconds");
    let for_people = first("debug").parse::<i64>().is_ok_and(|level| level != 0);
    if !seconds.is_empty() {
        if for_people {
            return refused(StatusCode::BAD_REQUEST, "seconds and debug params are incompatible");
        }
        // What came to be meanwhile.
        let Some(seconds) = seconds.parse::<u64>().ok().filter(|s| *s > 0) else {
            return refused(StatusCode::BAD_REQUEST, "invalid value for \"seconds\" - must be a positive integer");
        };
        if seconds >= LONGEST_SECONDS {
            return too_long();
        }
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        samples = since(&samples, taken(move || profile.take()).await);
    }
    if for_people {
        return text(StatusCode::OK, profile.page(&samples));
    }
    let kinds = profile.kinds();
    let period = kinds.last().copied().unwrap_or_default();
    packed(name, &encode(&kinds, (period, 0), 0, &samples))
}

/// CPU time of threads from now on, for so many seconds.
async fn cpu(seconds: &str) -> Response<Answer> {
    let seconds = seconds.parse::<u64>().ok().filter(|s| *s > 0).unwrap_or(CPU_SECONDS);
    if seconds >= LONGEST_SECONDS {
        return too_long();
    }
    let before = taken(cpu_times).await;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let used = by_name(since(&before, taken(cpu_times).await));
    let kinds = [("samples", "count"), ("cpu", "nanoseconds")];
    let nanos = i64::try_from(seconds.saturating_mul(1_000_000_000)).unwrap_or(i64::MAX);
    packed("profile", &encode(&kinds, (("cpu", "nanoseconds"), 1), nanos, &used))
}

/// Files of the kernel may take a moment, in which others go on.
async fn taken(take: impl FnOnce() -> Samples + Send + 'static) -> Samples {
    tokio::task::spawn_blocking(take).await.unwrap_or_default()
}

fn refused(code: StatusCode, why: &str) -> Response<Answer> {
    let mut answer = text(code, format!("{why}\n"));
    answer.headers_mut().insert("x-go-pprof", HeaderValue::from_static("1"));
    answer
}

fn too_long() -> Response<Answer> {
    refused(StatusCode::BAD_REQUEST, "profile duration exceeds server's WriteTimeout")
}

fn packed(name: &str, message: &[u8]) -> Response<Answer> {
    let Some(body) = gzip(message) else {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "the profile cannot be packed");
    };
    let mut answer = bare(StatusCode::OK, body);
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    answer
}

/// What `after` has more of; names with nothing more are left out.
fn since(before: &Samples, after: Samples) -> Samples {
    let more = after.into_iter().filter_map(|(name, values)| {
        let earlier = before.get(&name);
        let at = |at: usize| earlier.and_then(|v| v.get(at)).copied().unwrap_or(0);
        let values: Vec<i64> = values.iter().enumerate().map(|(n, v)| v.saturating_sub(at(n))).collect();
        values.iter().any(|v| *v != 0).then_some((name, values))
    });
    more.collect()
}

fn add(samples: &mut Samples, name: String, values: &[i64]) {
    let kept = samples.entry(name).or_insert_with(|| vec![0; values.len()]);
    kept.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
}

/// A file of each thread, and the thread's number and name with a blank between. Threads may end meanwhile.
fn of_threads(file: &str) -> Vec<(String, String)> {
    let folders = std::fs::read_dir(TASKS).into_iter().flatten().flatten();
    let read = |folder: &Path, file: &str| std::fs::read_to_string(folder.join(file)).ok();
    let both = folders.filter_map(|task| {
        let (name, text) = (read(&task.path(), "comm")?, read(&task.path(), file)?);
        Some((format!("{} {}", task.file_name().display(), name.trim_end()), text))
    });
    both.collect()
}

/// Threads of one name together.
fn by_name(of_threads: Samples) -> Samples {
    let mut samples = Samples::new();
    for (thread, values) in of_threads {
        let name = thread.split_once(' ').map_or("", |(_, name)| name);
        add(&mut samples, name.to_owned(), &values);
    }
    samples
}

fn threads() -> Samples {
    let mut samples = Samples::new();
    for (thread, _) in of_threads("comm") {
        add(&mut samples, thread, &[1]);
    }
    by_name(samples)
}

/// How often each thread ran, and for how many nanoseconds: proc(5), `schedstat`. By thread, for of two moments only those
/// of one thread can be compared: others of its name come and go.
fn cpu_times() -> Samples {
    let mut samples = Samples::new();
    for (thread, text) in of_threads("schedstat") {
        let mut numbers = text.split_whitespace().map(|word| word.parse::<i64>().unwrap_or(0));
        let (nanos, _waited, slices) = (numbers.next(), numbers.next(), numbers.next());
        add(&mut samples, thread, &[slices.unwrap_or(0), nanos.unwrap_or(0)]);
    }
    samples
}

/// Mappings and address space, mappings with memory and their resident bytes, by what is mapped.
fn mappings(smaps: &str) -> Samples {
    let mut samples = Samples::new();
    let mut name = String::new();
    let (mut size, kib) = (0_i64, |rest: &str| {
        rest.split_whitespace().next().and_then(|n| n.parse::<i64>().ok()).map_or(0, |n| n.saturating_mul(1024))
    });
    for line in smaps.lines() {
        if let Some(rest) = line.strip_prefix("Size:") {
            size = kib(rest);
        } else if let Some(rest) = line.strip_prefix("Rss:") {
            let resident = kib(rest);
            add(&mut samples, name.clone(), &[1, size, i64::from(resident > 0), resident]);
        } else if line.split_once(' ').is_some_and(|(first, _)| first.contains('-') && !first.contains(':')) {
            // ADDRESSES PERMISSIONS OFFSET DEVICE INODE NAME
            let path = line.split_whitespace().skip(5).collect::<Vec<_>>().join(" ");
            name = if path.is_empty() { "anonymous".to_owned() } else { path };
        }
    }
    samples
}

/// Of pprof's `profile.proto`: each name is a function of its own, and each sample a stack of one.
fn encode(kinds: &[Kind], (period, every): (Kind, i64), duration_nanos: i64, samples: &Samples) -> Vec<u8> {
    let mut strings = vec![String::new()];
    let mut string = |text: &str| {
        let at = strings.iter().position(|known| known == text).unwrap_or_else(|| {
            strings.push(text.to_owned());
            strings.len() - 1
        });
        i64::try_from(at).unwrap_or(0)
    };
    let mut kind = |(name, unit): Kind| wire::ValueType { kind: string(name), unit: string(unit) };
    let mut message = wire::Profile {
        sample_type: kinds.iter().map(|k| kind(*k)).collect(),
        period_type: Some(kind(period)),
        period: every,
        time_nanos: crate::clock::unix_nanos(),
        duration_nanos,
        ..wire::Profile::default()
    };
    for (number, (name, values)) in (1_u64..).zip(samples) {
        message.function.push(wire::Function { id: number, name: string(name) });
        let line = wire::Line { function_id: number };
        message.location.push(wire::Location { id: number, line: vec![line] });
        message.sample.push(wire::Sample { location_id: vec![number], value: values.clone() });
    }
    message.string_table = strings;
    message.encode_to_vec()
}

/// pprof's `profile.proto`, as far as it is used here.
mod wire {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub period: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub kind: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use http_body_util::BodyExt as _;

    use super::*;

    const SMAPS: &str = "55d0a0000000-55d0a0002000 r-xp 00000000 fe:00 12   /usr/bin/node agent\nSize:  8 kB\nRss: 4 kB\n\
                         VmFlags: rd ex\n7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \nSize: 4 kB\nRss: 0 kB\n\
                         7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \nSize: 4 kB\nRss: 4 kB\n";

    async fn got(name: &str, query: &str) -> (u16, String, Vec<u8>) {
        let answer = answer(name, query).await;
        let kind = answer.headers()[header::CONTENT_TYPE].to_str().unwrap_or_default().to_owned();
        let status = answer.status().as_u16();
        (status, kind, answer.into_body().collect().await.expect("whole").to_bytes().to_vec())
    }

    #[test]
    fn memory_is_told_by_mapping() {
        let found = mappings(SMAPS);
        assert_eq!(found["/usr/bin/node agent"], [1, 8192, 1, 4096]);
        assert_eq!(found["anonymous"], [2, 8192, 1, 4096]);
        assert_eq!(found.len(), 2);
        let page = Profile::Memory("heap").page(&found);
        assert!(page.starts_with("heap profile: 2: 8192 [3: 16384] @ heap/0\n"), "{page}");
        assert!(page.contains("1: 4096 [2: 8192] @\n#\tanonymous\n"), "{page}");
    }

    #[test]
    fn of_two_looks_the_difference_counts() {
        let of = |pairs: &[(&str, i64)]| pairs.iter().map(|(n, v)| ((*n).to_owned(), vec![*v])).collect::<Samples>();
        assert_eq!(since(&of(&[("a", 1), ("b", 2)]), of(&[("a", 1), ("b", 5), ("c", 7)])), of(&[("b", 3), ("c", 7)]));
    }

    /// Every name but the command line's used to be 404.
    #[tokio::test]
    async fn profiles_are_there_for_people_and_for_programs() {
        for name in ["goroutine", "threadcreate", "heap", "allocs", "block", "mutex"] {
            let (status, kind, body) = got(name, "debug=1").await;
            assert_eq!((status, kind.as_str()), (200, "text/plain; charset=utf-8"), "{name}");
            assert!(!body.is_empty(), "{name}");
            let (status, kind, body) = got(name, "").await;
            assert_eq!((status, kind.as_str()), (200, "application/octet-stream"), "{name}");
            let mut message = Vec::new();
            flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut message).expect("gzip");
            let profile = wire::Profile::decode(&message[..]).expect("a profile");
            assert_eq!(profile.string_table[0], "");
            assert_eq!(profile.sample.is_empty(), matches!(name, "block" | "mutex"), "{name}");
            for sample in &profile.sample {
                assert_eq!(sample.value.len(), profile.sample_type.len());
                assert!(profile.location.iter().any(|l| sample.location_id == [l.id]));
            }
        }
        assert_eq!(got("nothing", "").await.0, 404);
        assert_eq!(got("heap", "seconds=x").await.0, 400);
        assert_eq!(got("profile", "seconds=14400").await.0, 400);
    }

    #[tokio::test]
    async fn cpu_time_is_told_by_thread() {
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        let goes_on = asked.clone();
        let busy = std::thread::Builder::new().name("busy".into()).spawn(move || {
            while goes_on.load(std::sync::atomic::Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let (status, _, body) = got("profile", "seconds=1").await;
        asked.store(false, std::sync::atomic::Ordering::Relaxed);
        busy.expect("a thread").join().expect("ends");
        assert_eq!(status, 200);
        let mut message = Vec::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut message).expect("gzip");
        let profile = wire::Profile::decode(&message[..]).expect("a profile");
        let name = |id: u64| {
            let function = profile.function.iter().find(|f| f.id == id).map_or(0, |f| f.name);
            profile.string_table[usize::try_from(function).expect("an index")].as_str()
        };
        let used = profile.sample.iter().find(|s| name(s.location_id[0]) == "busy").expect("it ran");
        assert!(used.value[1] > 50_000_000, "{:?}", used.value);
        assert_eq!(profile.duration_nanos, 1_000_000_000);
    }
}
