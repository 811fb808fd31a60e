//! Controllers: clients of the same store that bring what is there to what should be there.
//!
//! Each waits on the store's events and works when there is something to do; switched by `--controllers`.

mod account_tokens;
mod aggregation;
mod attach_detach;
mod attribute_classes;
mod autoscaler;
mod bootstrap_signer;
mod certificates;
mod correlate;
mod cronjob;
mod daemonset;
mod deployment;
mod device_taint_eviction;
mod disruption;
mod endpoints;
pub mod events;
mod expiry;
pub mod feed;
mod finished;
mod garbage;
mod history;
mod index;
mod job;
mod mirroring;
mod namespace;
mod namespace_defaults;
mod node_ipam;
mod node_lifecycle;
mod node_ttl;
mod ownership;
mod pod_groups;
mod podgc;
pub mod pods;
mod policy_status;
mod protection;
mod queue;
mod quota;
mod replicaset;
pub mod resource_claims;
mod runner;
mod schedule;
mod series;
mod statefulset;
mod taint_eviction;
mod token_cleaner;
pub mod volumes;

use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};

pub(crate) use self::feed::Change;
pub(crate) use self::ownership::{done, set_condition};
pub(crate) use self::protection::hold;
pub(crate) use self::queue::Queue;
pub(crate) use self::runner::{Controller, run as follow};
use crate::client::Client;
use crate::components::Pulse;
use crate::config::{Config, Controllers};
use crate::pki::Authority;
use crate::server::ApiServer;

/// Starts the controllers that are switched on, and the scheduler. They end with the runtime.
pub fn start(server: &Arc<ApiServer>, config: &Config, authority: Authority) {
    let enabled = &config.controllers;
    let account = enabled.enabled("serviceaccount-controller");
    let root_ca = enabled.enabled("root-ca-certificate-publisher-controller");
    if account || root_ca {
        let defaults = namespace_defaults::Defaults { account, root_ca: root_ca.then(|| authority.pem().to_owned()) };
        tokio::spawn(namespace_defaults::run(server.clone(), defaults));
    }
    let client = |user: &str, manager: &str| Client::new(server.clone(), user, manager);
    let own = client("system:kube-controller-manager", "kube-controller-manager");
    let recorder = events::Recorder::start(own.clone());
    let mut start = Start { client: &own, recorder: &recorder, enabled, known: BUILT.to_vec(), running: Vec::new() };
    start.with(namespace::Namespaces::new);
    let told = Arc::default();
    start.making(move |client, recorder| garbage::Garbage::new(client, recorder, Arc::clone(&told)));
    start.with(podgc::PodGc::new);
    start.reporting(node_lifecycle::NodeLifecycle::new);
    start.with(node_ttl::NodeTtl::new);
    start.reporting(taint_eviction::TaintEviction::new);
    start.reporting(replicaset::ReplicaSets::<false>::new);
    start.reporting(replicaset::ReplicaSets::<true>::new);
    start.reporting(deployment::Deployments::new);
    start.reporting(daemonset::DaemonSets::new);
    start.reporting(statefulset::StatefulSets::new);
    start.reporting(job::Jobs::new);
    start.reporting(cronjob::CronJobs::new);
    start.with(finished::Finished::new);
    start.reporting(disruption::Disruption::new);
    start.reporting(autoscaler::Autoscaler::new);
    start.with(aggregation::Aggregation::new);
    start.with(policy_status::PolicyStatus::new);
    start.with(quota::Quotas::new);
    start.reporting(volumes::Binder::new);
    start.reporting(attach_detach::AttachDetach::new);
    start.with(protection::Claims::new);
    start.with(protection::Volumes::new);
    start.with(attribute_classes::AttributeClasses::new);
    if config.gates.enabled("GenericWorkload") {
        start.with(pod_groups::PodGroups::new);
    }
    start.reporting(protection::Ephemeral::new);
    start.reporting(endpoints::Endpoints::<false>::new);
    start.reporting(endpoints::Endpoints::<true>::new);
    start.reporting(mirroring::Mirroring::new);
    start.reporting(resource_claims::ResourceClaims::new);
    if config.gates.enabled("DRADeviceTaints") {
        start.reporting(device_taint_eviction::DeviceTaintEviction::new);
    }
    start.alone(certificates::Approver::new);
    start.with(certificates::Cleaner::new);
    start.with(bootstrap_signer::BootstrapSigner::new);
    start.with(token_cleaner::TokenCleaner::new);
    let root_ca = authority.pem().to_owned();
    start.making(move |client, _| account_tokens::AccountTokens::new(client, &root_ca));
    if !config.node_cidrs.0.is_empty() {
        let (ranges, services) = (config.node_cidrs.clone(), config.service_cidrs.clone());
        start.making(move |client, recorder| node_ipam::NodeIpam::new(client, recorder, &ranges, &services));
    }
    let authority = Arc::new(authority);
    let life = config.signing_duration;
    start.making(move |client, _| certificates::Signer::new(client, authority.clone(), life));
    for name in enabled.named().filter(|n| !start.known.contains(n)) {
        tracing::warn!(controller = name, "this controller is not part of apiserver-lite");
    }
    if !start.running.is_empty() {
        let pulse = server.components.with_controllers();
        start.running.push(keep(pulse).boxed());
    }
    tokio::spawn(runner::run_all(start.running));
    tokio::spawn(expiry::run(client("system:apiserver", "kube-apiserver"), config.event_ttl));
    if config.args.scheduler {
        let client = client("system:kube-scheduler", "kube-scheduler");
        let features = crate::scheduler::Features::new(&config.gates);
        let (recorder, pulse) = (events::Recorder::start(client.clone()), server.components.with_scheduler());
        tokio::spawn(crate::scheduler::run(client, recorder, features, pulse));
    }
}

/// Answers for the task that it is a part of.
async fn keep(pulse: Arc<Pulse>) {
    loop {
        pulse.answer().await;
    }
}

/// Controllers that run in another way than most.
const BUILT: &[&str] = &[
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "node-ipam-controller",
    "podgroup-protection-controller",
    "device-taint-eviction-controller",
];

/// Starts controllers one by one, as far as they are switched on.
struct Start<'a> {
    client: &'a Client,
    recorder: &'a events::Recorder,
    enabled: &'a Controllers,
    /// Those that exist.
    known: Vec<&'static str>,
    running: Vec<BoxFuture<'static, ()>>,
}

impl Start<'_> {
    fn with<C: Controller>(&mut self, make: fn(Client) -> C) {
        self.making(move |client, _| make(client));
    }

    fn reporting<C: Controller>(&mut self, make: fn(Client, events::Recorder) -> C) {
        self.making(make);
    }

    fn making<C: Controller>(&mut self, make: impl Fn(Client, events::Recorder) -> C + Send + Sync + 'static) {
        let run = self.made(make);
        self.running.extend(run);
    }

    /// One that may wait in a way that holds up all who share its task.
    fn alone<C: Controller>(&mut self, make: fn(Client) -> C) {
        if let Some(run) = self.made(move |client, _| make(client)) {
            tokio::spawn(run);
        }
    }

    fn made<C: Controller>(
        &mut self,
        make: impl Fn(Client, events::Recorder) -> C + Send + Sync + 'static,
    ) -> Option<BoxFuture<'static, ()>> {
        self.known.push(C::NAME);
        let (client, recorder) = (self.client.clone(), self.recorder.clone());
        let run = || runner::run(client.store().clone(), move || make(client.clone(), recorder.clone()));
        self.enabled.enabled(C::NAME).then(|| run().boxed())
    }
}
