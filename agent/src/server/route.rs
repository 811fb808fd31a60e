//! Which handler a path belongs to, what that handler asks of the caller, and which methods and forms it takes.
//!
//! Two kinds of places, as in the kubelet: those under a prefix refuse wrong methods and unknown names by themselves
//! (after authorization), those at an exact path take any method. What is at no place at all is 404 before anybody is
//! asked who he is.

use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

use super::answers::{Answer, plain};
use super::checkpoint::Names;
use super::health;

/// Which places there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Surface {
    /// `enableDebuggingHandlers`, and never on the read-only port.
    pub debugging: bool,
    pub checkpoint: bool,
    pub flagz: bool,
    pub statusz: bool,
    pub system_logs: bool,
    pub profiling: bool,
    pub debug_flags: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    HealthCheck(&'static str),
    Pods,
    RunningPods,
    Summary,
    Metrics,
    CadvisorMetrics,
    ResourceMetrics,
    ProbeMetrics,
    SliMetrics,
    Checkpoint(Names),
    /// Below a path that is known: nothing is there, but only who may ask is told so.
    Nothing(&'static [&'static str]),
    /// Switched off by the configuration; the text says what.
    Disabled(&'static [&'static str], &'static str),
    Configz,
    Flagz,
    Statusz,
    /// A path below the node's log folder.
    Logs(String),
    ContainerLogs {
        namespace: String,
        pod: String,
        container: String,
    },
    Exec(Target),
    Attach(Target),
    PortForward(Target),
    Run(Target),
    Profile(String),
    LogLevel,
}

/// A pod, and a container in it where the path has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub namespace: String,
    pub pod: String,
    pub uid: Option<String>,
    pub container: String,
}

const PROXY: &[&str] = &["proxy"];
const PODS: &[&str] = &["pods", "proxy"];
const STATS: &[&str] = &["stats"];
const LOG: &[&str] = &["log"];
const CHECKPOINT: &[&str] = &["checkpoint"];
const DEBUG_OFF: &str = "Debug endpoints are disabled.\n";
/// First parts of paths that requests are counted by: those of every port, and those of the port with everything.
const BUCKETS: &[&str] = &[
    "healthz",
    "pods",
    "stats",
    "metrics",
    "run",
    "exec",
    "attach",
    "portForward",
    "containerLogs",
    "runningpods",
    "logs",
];
const BUCKETS_OF_DEBUGGING: &[&str] = &["configz", "debug"];
const JSON: &str = "application/json";

impl Surface {
    /// Places that exist with a slash at their end alone.
    pub(super) fn folders(self) -> &'static [&'static str] {
        match (self.debugging, self.checkpoint) {
            (true, true) => &["/stats/", "/runningpods/", "/logs/", "/debug/pprof/", "/checkpoint/"],
            (true, false) => &["/stats/", "/runningpods/", "/logs/", "/debug/pprof/"],
            (false, _) => &[
                "/stats/",
                "/runningpods/",
                "/logs/",
                "/debug/pprof/",
                "/run/",
                "/exec/",
                "/attach/",
                "/portForward/",
                "/containerLogs/",
            ],
        }
    }

    /// First parts of the paths that `/statusz` names: in the kubelet those whose handlers are no web services, which the
    /// refusals of places that are switched off are not either. Sorted.
    pub(super) fn listed(self) -> Vec<&'static str> {
        let all = [
            ("/configz", true),
            ("/debug", true),
            ("/flagz", self.flagz),
            ("/healthz", true),
            ("/logs", !self.system_logs),
            ("/metrics", true),
        ];
        all.into_iter().filter(|(_, on)| *on).map(|(path, _)| path).collect()
    }

    /// The path's part in `kubelet_http_requests_total`, and whether such requests may last. Its beginning says it all,
    /// whatever becomes of the request.
    pub(super) fn bucket(self, sent: &str) -> (&'static str, bool) {
        let mut parts = sent.trim_start_matches('/').splitn(3, '/');
        let (root, second) = (parts.next().unwrap_or_default(), parts.next());
        let known = match (root, second) {
            ("metrics", Some("cadvisor")) => "metrics/cadvisor",
            ("metrics", Some("probes")) => "metrics/probes",
            ("metrics", Some("resource")) => "metrics/resource",
            // As in the kubelet, which has no name for others.
            ("metrics", Some(_)) => "other",
            _ => {
                let debugging = BUCKETS_OF_DEBUGGING.iter().filter(|_| self.debugging);
                let gated = [("checkpoint", self.checkpoint), ("statusz", self.statusz), ("flagz", self.flagz)];
                let gated = gated.iter().filter(|(_, on)| *on && self.debugging).map(|(name, _)| name);
                let mut all = BUCKETS.iter().chain(debugging).chain(gated);
                all.find(|name| **name == root).copied().unwrap_or("other")
            }
        };
        // In the kubelet's words, so `portForward` does not count.
        (known, matches!(known, "exec" | "attach" | "debug"))
    }

    /// The place of a decoded path.
    pub(super) fn route(self, path: &str) -> Option<Route> {
        let exact = match path {
            "/healthz" => Some(Route::Health),
            "/metrics" => Some(Route::Metrics),
            "/metrics/cadvisor" => Some(Route::CadvisorMetrics),
            "/metrics/resource" => Some(Route::ResourceMetrics),
            "/metrics/probes" => Some(Route::ProbeMetrics),
            "/metrics/slis" => Some(Route::SliMetrics),
            "/configz" if self.debugging => Some(Route::Configz),
            "/flagz" if self.debugging && self.flagz => Some(Route::Flagz),
            "/statusz" if self.debugging && self.statusz => Some(Route::Statusz),
            "/debug/flags/v" if self.debugging => Some(match self.debug_flags {
                true => Route::LogLevel,
                false => Route::Disabled(PROXY, "flags endpoint is disabled.\n"),
            }),
            _ => None,
        };
        if exact.is_some() {
            return exact;
        }
        if let Some(name) = path.strip_prefix("/healthz/") {
            return Some(Route::HealthCheck(health::CHECKS.into_iter().find(|c| *c == name)?));
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        // The folders exist below their slash only; the others with and without.
        let (root, rest) = parts.split_first()?;
        let is_folder = path.strip_prefix('/')?.strip_prefix(root)?.starts_with('/');
        let off = |subresources| (!self.debugging && is_folder).then_some(Route::Disabled(subresources, DEBUG_OFF));
        Some(match (*root, rest) {
            ("pods", []) => Route::Pods,
            ("pods", _) => Route::Nothing(PODS),
            ("stats", ["summary"]) => Route::Summary,
            ("stats", _) if is_folder => Route::Nothing(STATS),
            ("runningpods", _) if !self.debugging => return off(PODS),
            ("logs", _) if !self.debugging => return off(LOG),
            ("run" | "exec" | "attach" | "portForward" | "containerLogs", _) if !self.debugging => return off(PROXY),
            ("debug", ["pprof", ..]) if !self.debugging => {
                return path.starts_with("/debug/pprof/").then_some(Route::Disabled(PROXY, DEBUG_OFF));
            }
            _ if !self.debugging => return None,
            ("runningpods", []) => Route::RunningPods,
            ("runningpods", _) => Route::Nothing(PODS),
            ("checkpoint", rest) if self.checkpoint => match rest {
                [namespace, pod, container] => Route::Checkpoint(Names {
                    namespace: (*namespace).into(),
                    pod: (*pod).into(),
                    container: (*container).into(),
                }),
                _ => Route::Nothing(CHECKPOINT),
            },
            ("logs", _) if !self.system_logs => Route::Disabled(LOG, "logs endpoint is disabled.\n"),
            ("logs", _) => Route::Logs(path.strip_prefix("/logs/")?.to_owned()),
            ("containerLogs", [namespace, pod, container]) => Route::ContainerLogs {
                namespace: (*namespace).into(),
                pod: (*pod).into(),
                container: (*container).into(),
            },
            ("exec", rest) => Target::of(rest, true).map_or(Route::Nothing(PROXY), Route::Exec),
            ("attach", rest) => Target::of(rest, true).map_or(Route::Nothing(PROXY), Route::Attach),
            ("run", rest) => Target::of(rest, true).map_or(Route::Nothing(PROXY), Route::Run),
            ("portForward", rest) => Target::of(rest, false).map_or(Route::Nothing(PROXY), Route::PortForward),
            ("containerLogs", _) => Route::Nothing(PROXY),
            ("debug", ["pprof", name @ ..]) if path.starts_with("/debug/pprof/") => match (self.profiling, name) {
                (false, _) => Route::Disabled(PROXY, "profiling endpoint is disabled.\n"),
                (true, []) => Route::Nothing(PROXY),
                (true, name) => Route::Profile(name.join("/")),
            },
            _ => return None,
        })
    }
}

impl Route {
    /// The subresources of `nodes`, one of which the caller has to have.
    pub(super) fn subresources(&self) -> &'static [&'static str] {
        match self {
            Route::Health | Route::HealthCheck(_) => &["healthz", "proxy"],
            Route::Pods | Route::RunningPods => PODS,
            Route::Summary => STATS,
            Route::Metrics
            | Route::CadvisorMetrics
            | Route::ResourceMetrics
            | Route::ProbeMetrics
            | Route::SliMetrics => &["metrics"],
            Route::Checkpoint(_) => CHECKPOINT,
            Route::Nothing(subresources) | Route::Disabled(subresources, _) => subresources,
            Route::Configz => &["configz", "proxy"],
            Route::Flagz => &["configz"],
            Route::Statusz => &["statusz"],
            Route::Logs(_) => LOG,
            _ => PROXY,
        }
    }

    /// The methods it takes, as `Allow` names them, and the forms it makes; `None` for any.
    fn takes(&self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            Route::Pods | Route::RunningPods => Some(("GET", &[JSON])),
            Route::Summary => Some(("GET, POST", &[JSON])),
            Route::Checkpoint(_) => Some(("POST", &[JSON])),
            Route::ContainerLogs { .. } | Route::Logs(_) | Route::Profile(_) => Some(("GET", &[])),
            Route::Exec(_) | Route::Attach(_) | Route::PortForward(_) => Some(("GET, POST", &[])),
            Route::Run(_) => Some(("POST", &[])),
            _ => None,
        }
    }

    /// What a request by this method with these headers is refused with, if it is.
    pub(super) fn refuses(&self, method: &Method, headers: &HeaderMap) -> Option<Response<Answer>> {
        let (methods, forms) = self.takes()?;
        if !methods.split(", ").any(|m| m == method.as_str()) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
            refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
            return Some(refused);
        }
        let accept = headers.get(header::ACCEPT).and_then(|a| a.to_str().ok()).filter(|a| !a.is_empty())?;
        let wanted = accept.split(',').map(|clause| clause.split(';').next().unwrap_or_default().trim_matches(' '));
        if wanted.into_iter().any(|form| form == "*/*" || forms.contains(&form)) {
            return None;
        }
        let has_body = headers.get(header::CONTENT_LENGTH).is_some_and(|l| l != "0");
        let (code, what) = match *method == Method::POST && !has_body {
            true => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported Media Type"),
            false => (StatusCode::NOT_ACCEPTABLE, "Not Acceptable"),
        };
        let text = format!("{}: {what}\n\nAvailable representations: {}", code.as_u16(), forms.join(", "));
        Some(plain(code, text))
    }
}

impl Target {
    fn of(parts: &[&str], with_container: bool) -> Option<Target> {
        let (names, container) = match (with_container, parts) {
            (true, [names @ .., container]) => (names, (*container).to_owned()),
            (true, []) => return None,
            (false, names) => (names, String::new()),
        };
        let (namespace, pod, uid) = match names {
            [namespace, pod] => (namespace, pod, None),
            [namespace, pod, uid] => (namespace, pod, Some((*uid).to_owned())),
            _ => return None,
        };
        Some(Target { namespace: (*namespace).into(), pod: (*pod).into(), uid, container })
    }
}

/// The pairs of a query in their order; what is malformed is left out, as Go's servers do.
pub(super) fn query_pairs(query: &str) -> Vec<(String, String)> {
    parse_query(query).0
}

/// The same, and the first mistake in Go's words.
pub(super) fn parse_query(query: &str) -> (Vec<(String, String)>, Option<String>) {
    let (mut pairs, mut mistake) = (Vec::new(), None);
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let read = match pair.contains(';') {
            true => Err("invalid semicolon separator in query".to_owned()),
            false => decode(key).and_then(|key| Ok((key, decode(value)?))),
        };
        match read {
            Ok(pair) => pairs.push(pair),
            Err(why) => drop(mistake.get_or_insert(why)),
        }
    }
    (pairs, mistake)
}

fn decode(text: &str) -> Result<String, String> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let digits = bytes.get(at + 1..at + 3).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
                let value = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
                let Some(value) = value else {
                    let escape = String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 3)]);
                    return Err(format!("invalid URL escape {escape:?}"));
                };
                out.push(value);
                at += 2;
            }
            b'+' => out.push(b' '),
            _ => out.push(*byte),
        }
        at += 1;
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Surface = Surface {
        debugging: true,
        checkpoint: true,
        flagz: true,
        statusz: true,
        system_logs: true,
        profiling: true,
        debug_flags: true,
    };

    #[test]
    fn paths_with_and_without_uid_are_told_apart() {
        let target = |uid: Option<&str>| Target {
            namespace: "ns".into(),
            pod: "p".into(),
            uid: uid.map(Into::into),
            container: "c".into(),
        };
        assert_eq!(ALL.route("/exec/ns/p/c"), Some(Route::Exec(target(None))));
        assert_eq!(ALL.route("/exec/ns/p/u/c/"), Some(Route::Exec(target(Some("u")))));
        assert_eq!(ALL.route("/exec/ns"), Some(Route::Nothing(PROXY)));
        assert_eq!(ALL.route("/exec"), Some(Route::Nothing(PROXY)));
        assert_eq!(
            query_pairs("command=a%20b&command=c+d"),
            [("command".into(), "a b".into()), ("command".into(), "c d".to_owned())]
        );
        let (pairs, mistake) = parse_query("a=%zz&b=1;c=2&d=%+f&e=%4&f=%C3%A4");
        assert_eq!(pairs, [("f".to_owned(), "ä".to_owned())]);
        assert_eq!(mistake.as_deref(), Some("invalid URL escape \"%zz\""));
    }

    #[test]
    fn exact_paths_have_nothing_around_them() {
        for nowhere in ["/", "/healthz/", "/healthz/nothing", "/metrics/", "/configz/", "/debug/", "/podsx", "/statsx"]
        {
            assert_eq!(ALL.route(nowhere), None, "{nowhere}");
        }
        assert_eq!(ALL.route("/pods/"), Some(Route::Pods));
        assert_eq!(ALL.route("/pods/x"), Some(Route::Nothing(PODS)));
        assert_eq!(ALL.route("/stats/container"), Some(Route::Nothing(STATS)));
        assert_eq!(ALL.route("/logs/a/b"), Some(Route::Logs("a/b".into())));
        assert_eq!(ALL.route("/debug/pprof/heap"), Some(Route::Profile("heap".into())));
    }

    #[test]
    fn without_debugging_some_places_say_so_and_the_rest_is_not_there() {
        let read_only = Surface { debugging: false, ..ALL };
        assert_eq!(read_only.route("/exec/a/b/c"), Some(Route::Disabled(PROXY, DEBUG_OFF)));
        assert_eq!(read_only.route("/logs/x"), Some(Route::Disabled(LOG, DEBUG_OFF)));
        for nowhere in ["/configz", "/flagz", "/checkpoint/a/b/c", "/debug/flags/v"] {
            assert_eq!(read_only.route(nowhere), None, "{nowhere}");
        }
        assert_eq!(read_only.route("/stats/summary/"), Some(Route::Summary));
    }

    #[test]
    fn the_paths_that_are_told_follow_what_is_switched_on() {
        assert_eq!(ALL.listed(), ["/configz", "/debug", "/flagz", "/healthz", "/metrics"]);
        let some = Surface { flagz: false, system_logs: false, ..ALL };
        assert_eq!(some.listed(), ["/configz", "/debug", "/healthz", "/logs", "/metrics"]);
    }

    #[test]
    fn requests_are_counted_by_the_beginning_of_their_path() {
        assert_eq!(ALL.bucket("/exec/a/b/c"), ("exec", true));
        assert_eq!(ALL.bucket("/containerLogs/a/b/c"), ("containerLogs", false));
        assert_eq!(ALL.bucket("/portForward/a/b"), ("portForward", false));
        assert_eq!((ALL.bucket("/pods/nothing"), ALL.bucket("/metrics/slis")), (("pods", false), ("other", false)));
        assert_eq!(
            (ALL.bucket("/metrics/resource"), ALL.bucket("/x")),
            (("metrics/resource", false), ("other", false))
        );
        assert_eq!(Surface { checkpoint: false, ..ALL }.bucket("/checkpoint/a/b/c"), ("other", false));
    }

    #[test]
    fn forms_are_compared_without_their_parameters() {
        let with = |accept: &str| HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(accept).unwrap())]);
        let code = |route: &Route, method, accept| route.refuses(&method, &with(accept)).map(|r| r.status().as_u16());
        assert_eq!(code(&Route::Pods, Method::GET, "text/html, application/json;q=0.1"), None);
        assert_eq!(code(&Route::Pods, Method::GET, "application/yaml"), Some(406));
        assert_eq!(code(&Route::Pods, Method::DELETE, "application/yaml"), Some(405));
        assert_eq!(code(&Route::Summary, Method::POST, "application/yaml"), Some(415));
        assert_eq!(code(&Route::Metrics, Method::DELETE, "application/yaml"), None);
    }
}
