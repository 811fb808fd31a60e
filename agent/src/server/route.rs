//! From a path to its handler.

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use proto::schema::TypeSet;

use super::access::{Access, Refusal};
use super::answers::{Answer, json, plain, pod_list, text};
use super::checkpoint::Names;
use super::{ServerDeps, checkpoint, health, logs, node_stats, streams};
use crate::cli;
use crate::stats::Stats;

/// The handlers of port 10250.
pub struct Router {
    pub deps: Arc<ServerDeps>,
    pub access: Arc<Access>,
    pub stats: Stats,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    HealthCheck(&'static str),
    Pods,
    RunningPods,
    Summary,
    ResourceMetrics,
    Checkpoint(Names),
    /// Below a path that is known: nothing is there, but only who may ask is told so.
    Nothing(&'static [&'static str]),
    Configz,
    Flagz,
    ContainerLogs {
        namespace: String,
        pod: String,
        container: String,
    },
    Exec(Target),
    Attach(Target),
    PortForward(Target),
    Run(Target),
}

/// A pod, and a container in it where the path has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub namespace: String,
    pub pod: String,
    pub uid: Option<String>,
    pub container: String,
}

impl Route {
    pub(super) fn of(path: &str) -> Option<Route> {
        let parts: Vec<&str> = path.strip_prefix('/')?.split('/').collect();
        Some(match parts.as_slice() {
            ["healthz"] => Route::Health,
            ["healthz", name] => Route::HealthCheck(health::CHECKS.into_iter().find(|c| c == name)?),
            ["pods"] | ["pods", ""] => Route::Pods,
            ["runningpods", ""] => Route::RunningPods,
            ["runningpods", _, ..] => Route::Nothing(&["pods", "proxy"]),
            ["stats", "summary"] | ["stats", "summary", ""] => Route::Summary,
            ["stats", ..] => Route::Nothing(&["stats"]),
            ["metrics", "resource"] => Route::ResourceMetrics,
            ["checkpoint", namespace, pod, container] => Route::Checkpoint(Names {
                namespace: (*namespace).into(),
                pod: (*pod).into(),
                container: (*container).into(),
            }),
            ["checkpoint", _, ..] => Route::Nothing(&["checkpoint"]),
            ["configz"] => Route::Configz,
            ["flagz"] => Route::Flagz,
            ["containerLogs", namespace, pod, container] => Route::ContainerLogs {
                namespace: (*namespace).into(),
                pod: (*pod).into(),
                container: (*container).into(),
            },
            ["exec", rest @ ..] => Route::Exec(Target::of(rest, true)?),
            ["attach", rest @ ..] => Route::Attach(Target::of(rest, true)?),
            ["portForward", rest @ ..] => Route::PortForward(Target::of(rest, false)?),
            ["run", rest @ ..] => Route::Run(Target::of(rest, true)?),
            _ => return None,
        })
    }

    fn subresources(&self) -> &'static [&'static str] {
        match self {
            Route::Health | Route::HealthCheck(_) => &["healthz", "proxy"],
            Route::Pods | Route::RunningPods => &["pods", "proxy"],
            Route::Summary => &["stats"],
            Route::ResourceMetrics => &["metrics"],
            Route::Checkpoint(_) => &["checkpoint"],
            Route::Nothing(subresources) => subresources,
            Route::Configz => &["configz", "proxy"],
            Route::Flagz => &["configz"],
            _ => &["proxy"],
        }
    }

    /// The methods it takes, as `Allow` names them; empty for any.
    fn methods(&self) -> &'static str {
        match self {
            Route::Health | Route::HealthCheck(_) | Route::Configz | Route::ResourceMetrics | Route::Nothing(_) => "",
            Route::Exec(_) | Route::Attach(_) | Route::PortForward(_) | Route::Summary => "GET, POST",
            Route::Run(_) | Route::Checkpoint(_) => "POST",
            _ => "GET",
        }
    }

    fn takes(&self, method: &Method) -> bool {
        let methods = self.methods();
        methods.is_empty() || methods.split(", ").any(|m| m == method.as_str())
    }

    /// `enableDebuggingHandlers: false` takes these away.
    fn is_debugging(&self) -> bool {
        !matches!(self, Route::Health | Route::HealthCheck(_) | Route::Pods | Route::Summary | Route::ResourceMetrics)
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

impl Router {
    pub async fn handle(&self, request: Request<Incoming>, certificate: Option<Arc<[u8]>>) -> Response<Answer> {
        let Some(route) = Route::of(request.uri().path()) else {
            return text(StatusCode::NOT_FOUND, "404 page not found\n");
        };
        let check =
            self.access.check(request.headers(), certificate.as_deref(), request.method(), route.subresources()).await;
        match check {
            Ok(_) => {}
            Err(Refusal::Unauthorized) => return plain(StatusCode::UNAUTHORIZED, "Unauthorized"),
            Err(Refusal::Forbidden(why)) => return plain(StatusCode::FORBIDDEN, why),
            Err(Refusal::Failed(error)) => {
                return plain(StatusCode::INTERNAL_SERVER_ERROR, format!("Authorization error: {error}\n"));
            }
        }
        if !self.deps.config.enable_debugging_handlers && route.is_debugging() {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n");
        }
        if !route.takes(request.method()) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
            refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static(route.methods()));
            return refused;
        }
        let pods = self.deps.pods.borrow().clone();
        match (route, pods) {
            (Route::Health, pods) => {
                health::all(&health::CHECKS, request.uri().query().unwrap_or(""), pods.as_ref()).await
            }
            (Route::HealthCheck(name), pods) => health::one(name, pods.as_ref()).await,
            (Route::Nothing(_), _) => plain(StatusCode::NOT_FOUND, "404: Page Not Found"),
            (Route::Summary, _) => node_stats::summary(&self.stats, request.uri().query().unwrap_or("")).await,
            (Route::ResourceMetrics, _) => node_stats::resource(&self.stats).await,
            (Route::RunningPods, _) => node_stats::running_pods(&self.stats).await,
            (Route::Configz, _) => self.configz(),
            (Route::Flagz, _) => self.flagz(),
            (_, None) => plain(StatusCode::SERVICE_UNAVAILABLE, "the container runtime has not answered yet"),
            (Route::Pods, Some(pods)) => json(pod_list(pods.pods().await.iter())),
            (Route::ContainerLogs { namespace, pod, container }, Some(pods)) => {
                logs::serve(&pods, &namespace, &pod, &container, request.uri().query().unwrap_or("")).await
            }
            (Route::Checkpoint(names), Some(pods)) => {
                let (cri, root) = (&self.deps.cri, &self.deps.flags.root_dir);
                checkpoint::serve(&pods, cri, root, &names, request.uri().query().unwrap_or("")).await
            }
            (Route::Exec(target), Some(pods)) => streams::exec(&pods, &target, request).await,
            (Route::Attach(target), Some(pods)) => streams::attach(&pods, &target, request).await,
            (Route::PortForward(target), Some(pods)) => streams::port_forward(&pods, &target, request).await,
            (Route::Run(target), Some(pods)) => streams::run(&pods, &target, request.uri().query().unwrap_or("")).await,
        }
    }

    fn configz(&self) -> Response<Answer> {
        let set = TypeSet::built_in();
        let mut out = br#"{"kubeletconfig":"#.to_vec();
        match set.kind("kubelet.config.k8s.io", "v1beta1", "KubeletConfiguration") {
            Some(id) => proto::json::write(set, id, &self.deps.document, &mut out),
            None => proto::json::write_sorted(&self.deps.document, &mut out),
        }
        out.push(b'}');
        json(out)
    }

    fn flagz(&self) -> Response<Answer> {
        let mut page = String::from(
            "kubelet flagz\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.\n\n",
        );
        for name in cli::flag_names() {
            if let Some(value) = self.deps.flags.given.get(name) {
                page.push_str(&format!("{name}={value}\n"));
            }
        }
        let mut response = plain(StatusCode::OK, page);
        response.headers_mut().remove(header::X_CONTENT_TYPE_OPTIONS);
        response
    }
}

/// The values of a query by key, decoded; repeated keys in order.
pub(super) fn query_pairs(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|p| !p.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits = bytes.get(at + 1..at + 3).and_then(|d| std::str::from_utf8(d).ok());
        match (byte, digits.and_then(|d| u8::from_str_radix(d, 16).ok())) {
            (b'%', Some(value)) => {
                out.push(value);
                at += 3;
                continue;
            }
            (b'+', _) => out.push(b' '),
            _ => out.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_and_without_uid_are_told_apart() {
        let target = |uid: Option<&str>| Target {
            namespace: "ns".into(),
            pod: "p".into(),
            uid: uid.map(Into::into),
            container: "c".into(),
        };
        assert_eq!(Route::of("/exec/ns/p/c"), Some(Route::Exec(target(None))));
        assert_eq!(Route::of("/exec/ns/p/u/c"), Some(Route::Exec(target(Some("u")))));
        assert_eq!(Route::of("/exec/ns"), None);
        assert_eq!(Route::of("/healthz/"), None);
        assert_eq!(Route::of("/healthz/nothing"), None);
        assert_eq!(Route::of("/pods/"), Some(Route::Pods));
        assert_eq!(Route::of("/stats/container"), Some(Route::Nothing(&["stats"])));
        assert_eq!(Route::of("/"), None);
        assert_eq!(
            query_pairs("command=a%20b&command=c+d"),
            [("command".into(), "a b".into()), ("command".into(), "c d".to_owned())]
        );
    }
}
