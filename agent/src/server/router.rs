//! A request on its way to its handler: path, caller, method, handler.

use std::sync::Arc;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use proto::schema::TypeSet;

use super::access::{Access, Refusal};
use super::answers::{Answer, json, plain, redirect, text};
use super::client_ca::ShownCertificate;
use super::log_watch::LogWatch;
use super::mux::{Meant, meant};
use super::pod_page::PodPage;
use super::route::{Route, Surface};
use super::{ServerDeps, checkpoint, debug, health, logs, metrics_page, node_logs, node_stats, streams, zpages};
use crate::metrics;
use crate::pods::Handle;
use crate::stats::Stats;

/// The handlers of one port.
pub(super) struct Router {
    pub deps: Arc<ServerDeps>,
    /// `None` on the read-only port, where everybody may.
    pub access: Option<Access>,
    pub surface: Surface,
    pub stats: Arc<Stats>,
    pub logs: Arc<LogWatch>,
    pub pods: PodPage,
}

impl Router {
    async fn handle(&self, request: Request<Incoming>, certificate: Option<Arc<ShownCertificate>>) -> Response<Answer> {
        let path = match meant(request.uri().path(), self.surface.folders()) {
            Meant::Path(path) => path,
            elsewhere => return not_here(elsewhere, &request),
        };
        let Some(route) = self.surface.route(&path) else {
            return not_here(Meant::Nowhere, &request);
        };
        if let Some(access) = &self.access {
            let subresources = route.subresources();
            let asked = access.check(request.headers(), certificate.as_deref(), request.method(), subresources);
            match asked.await {
                Ok(_) => {}
                Err(Refusal::Unauthorized) => return plain(StatusCode::UNAUTHORIZED, "Unauthorized"),
                Err(Refusal::Forbidden(why)) => return plain(StatusCode::FORBIDDEN, why),
                Err(Refusal::Failed(why)) => return plain(StatusCode::INTERNAL_SERVER_ERROR, why),
            }
        }
        match route.refuses(request.method(), request.headers()) {
            Some(refused) => refused,
            None => self.serve(route, request).await,
        }
    }

    /// [`Router::handle`], counted.
    pub async fn counted(
        &self,
        request: Request<Incoming>,
        certificate: Option<Arc<ShownCertificate>>,
    ) -> Response<Answer> {
        let (path, lasts) = self.surface.bucket(request.uri().path());
        let method = match request.method().as_str() {
            known @ ("GET" | "HEAD" | "POST" | "PUT" | "DELETE" | "TRACE" | "OPTIONS" | "CONNECT") => known.to_owned(),
            _ => "other".to_owned(),
        };
        let port = if self.access.is_some() { "readwrite" } else { "readonly" };
        let labels = [if lasts { "true" } else { "false" }, &method, path, port];
        metrics::HTTP_REQUESTS.inc(&labels);
        let _underway = Underway::new(&labels);
        let _timer = metrics::HTTP_REQUESTS_SECONDS.time(&labels);
        self.handle(request, certificate).await
    }

    fn parts<'a>(&'a self, pods: Option<&'a Handle>) -> health::Parts<'a> {
        health::Parts { pods, devices: Some(&self.deps.devices) }
    }

    async fn serve(&self, route: Route, request: Request<Incoming>) -> Response<Answer> {
        let pods = self.deps.pods.borrow().clone();
        let query = request.uri().query().unwrap_or("").to_owned();
        let extended = self.deps.gates.enabled("ExtendWebSocketsToKubelet");
        match (route, pods) {
            (Route::Health, pods) => health::all(&health::CHECKS, &query, self.parts(pods.as_ref())).await,
            (Route::HealthCheck(name), pods) => health::one(name, self.parts(pods.as_ref())).await,
            (Route::Nothing(_), _) => plain(StatusCode::NOT_FOUND, "404: Page Not Found"),
            (Route::Disabled(_, why), _) => text(StatusCode::METHOD_NOT_ALLOWED, why),
            (Route::Summary, _) => node_stats::summary(&self.stats, request).await,
            (Route::ResourceMetrics, _) => node_stats::resource(&self.stats, request.headers()).await,
            (Route::Metrics, pods) => {
                if let Some(pods) = pods {
                    self.stats.count_logs(pods.pods()).await;
                }
                metrics_page::answer(&metrics::gather(), request.headers())
            }
            (Route::CadvisorMetrics, _) => node_stats::containers(&self.stats, request.headers()).await,
            (Route::ProbeMetrics, _) => metrics_page::answer(&metrics::gather_probes(), request.headers()),
            (Route::SliMetrics, pods) if *request.method() == Method::DELETE => {
                drop(pods);
                metrics::reset_slis();
                plain(StatusCode::OK, "metrics reset\n")
            }
            (Route::SliMetrics, pods) => {
                health::record(self.parts(pods.as_ref())).await;
                metrics_page::answer(&metrics::gather_slis(), request.headers())
            }
            (Route::RunningPods, _) => node_stats::running_pods(&self.stats).await,
            (Route::Configz, _) => self.configz(),
            (Route::Flagz, _) => zpages::flagz(&self.deps, request.headers()),
            (Route::Statusz, _) => zpages::statusz(&self.surface.listed(), request.headers()),
            (Route::Logs(path), _) => node_logs::serve(&self.deps.config, &path, &query, &request).await,
            (Route::Profile(name), _) => debug::profile(&name, &query).await,
            (Route::LogLevel, _) => debug::log_level(request).await,
            (_, None) => plain(StatusCode::SERVICE_UNAVAILABLE, "the container runtime has not answered yet"),
            (Route::Pods, Some(pods)) => json(self.pods.write(pods.known().await)),
            (Route::ContainerLogs { namespace, pod, container }, Some(pods)) => {
                let split = self.deps.gates.enabled("PodLogsQuerySplitStreams");
                logs::serve(&pods, &self.logs, (&namespace, &pod, &container), &query, split).await
            }
            (Route::Checkpoint(names), Some(pods)) => {
                let (cri, root) = (&self.deps.cri, &self.deps.flags.root_dir);
                let limits = (self.deps.flags.checkpoint_retention, self.deps.config.runtime_request_timeout.get());
                checkpoint::serve(&pods, cri, root, &names, &query, limits).await
            }
            (Route::Exec(target), Some(pods)) => streams::exec(&pods, &target, request, extended).await,
            (Route::Attach(target), Some(pods)) => streams::attach(&pods, &target, request, extended).await,
            (Route::PortForward(target), Some(pods)) => streams::port_forward(&pods, &target, request, extended).await,
            (Route::Run(target), Some(pods)) => streams::run(&pods, &target, request).await,
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
        let mut response = json(out);
        response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}

/// The answer for a path that is no handler's.
pub(super) fn not_here(meant: Meant, request: &Request<Incoming>) -> Response<Answer> {
    match meant {
        Meant::Elsewhere(path) => {
            let place = match request.uri().query() {
                Some(query) if !query.is_empty() => format!("{path}?{query}"),
                _ => path,
            };
            redirect(StatusCode::TEMPORARY_REDIRECT, &place, request.method())
        }
        // Go's server does not get as far as its handlers then.
        Meant::Malformed => {
            let mut refused = plain(StatusCode::BAD_REQUEST, "400 Bad Request");
            refused.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            refused
        }
        Meant::Nowhere | Meant::Path(_) => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// One request more while it lives.
struct Underway<'a>([&'a str; 4]);

impl<'a> Underway<'a> {
    fn new(labels: &[&'a str; 4]) -> Self {
        metrics::HTTP_INFLIGHT.add(labels, 1.0);
        Underway(*labels)
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        metrics::HTTP_INFLIGHT.add(&self.0, -1.0);
    }
}
