//! What every cluster has from the start: its own namespaces, roles, service, priority classes and flow control.
//!
//! Made at every start where missing, through the same write path as everything else; what an operator changed stays,
//! and roles and bindings get back what they lack. What says where the server is and whom it believes is put right, also
//! while it runs.

mod api_services;
pub(crate) mod identity;
mod joining;
mod keeper;
mod namespaces;
mod reconcile;
pub mod roles;
mod system;
mod trust;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::Value;

pub use system::Authorities;

pub(crate) use api_services::{available, priority};

use self::reconcile::Step;
use crate::config::Config;
use crate::flow;
use crate::request::User;
use crate::server::ApiServer;
use crate::status::Result;
use crate::write::{self, DeleteOptions, Target, WriteOptions};

const RBAC: &str = "rbac.authorization.k8s.io";

/// Until what was refused is tried again.
const AGAIN: Duration = Duration::from_secs(10);
/// So often an object is looked at anew that another server has changed or taken away meanwhile.
const ATTEMPTS: usize = 5;

/// What is wanted: where, in which namespace, and the object.
type Wanted = (Place, String, Value);

/// Makes what is missing. An object that is refused keeps nobody from serving the others; it is tried again.
///
/// # Errors
/// When the store refuses the namespaces of the system.
pub async fn ensure(server: &Arc<ApiServer>, config: &Config, authorities: &Authorities) -> Result<()> {
    server.admission.ask_nobody(true);
    let refused = make(server, config, authorities).await;
    let announced = refused.is_ok() && announce_or_tell(server).await;
    server.admission.ask_nobody(false);
    let refused = refused?;
    if !refused.is_empty() || !announced {
        tokio::spawn(again(server.clone(), refused, announced));
    }
    Ok(())
}

/// Starts to keep the server's own namespaces, service, endpoints and authentication config map as they should be.
pub fn keep(server: &Arc<ApiServer>, config: &Config, authorities: &Authorities) -> Kept {
    let kept = Kept::from(keeper::wanted(config, authorities));
    tokio::spawn(keeper::run(server.clone(), kept.clone()));
    kept
}

/// What is kept as it should be.
#[derive(Clone)]
pub struct Kept(Arc<ArcSwap<Vec<Wanted>>>);

impl From<Vec<Wanted>> for Kept {
    fn from(wanted: Vec<Wanted>) -> Self {
        Kept(Arc::new(ArcSwap::from_pointee(wanted)))
    }
}

impl Kept {
    /// Tells the servers of aggregated APIs whose proxies are believed by now. Who was believed before stays told.
    ///
    /// # Errors
    /// When the config map cannot be written.
    pub async fn tell(&self, server: &ApiServer, config: &Config, authorities: &Authorities) -> Result<()> {
        self.0.store(Arc::new(keeper::wanted(config, authorities)));
        let map = system::extension_authentication(config, authorities);
        create_missing(server, ("", "v1", "configmaps"), "kube-system", &map).await
    }
}

/// Tries what was refused until nothing is, or the runtime ends.
async fn again(server: Arc<ApiServer>, mut refused: Vec<Wanted>, mut announced: bool) {
    while !refused.is_empty() || !announced {
        tokio::time::sleep(AGAIN).await;
        refused = write_all(&server, refused).await;
        announced = announced || announce_or_tell(&server).await;
    }
}

/// Writes all at once: they share the sync of the log. What is refused comes back.
async fn write_all(server: &ApiServer, wanted: Vec<Wanted>) -> Vec<Wanted> {
    let writes = wanted.into_iter().map(|(place, namespace, object)| async move {
        let error = create_missing(server, place, &namespace, &object).await.err()?;
        let name = &object["metadata"]["name"];
        tracing::error!(resource = place.2, %name, %error, "a bootstrap object is refused and tried again");
        Some((place, namespace, object))
    });
    futures_util::future::join_all(writes).await.into_iter().flatten().collect()
}

async fn make(server: &ApiServer, config: &Config, authorities: &Authorities) -> Result<Vec<Wanted>> {
    let mut first = keeper::wanted(config, authorities);
    let cluster = String::new;
    // Much of the rest is in the namespaces.
    let mut wanted = first.split_off(namespaces::system().count());
    for (place, namespace, object) in first {
        create_missing(server, place, &namespace, &object).await?;
    }
    let aggregate = config.controllers.enabled("clusterrole-aggregation-controller");
    wanted.extend(
        roles::cluster_roles(aggregate, &config.gates)
            .into_iter()
            .map(|r| ((RBAC, "v1", "clusterroles"), cluster(), r)),
    );
    let bindings = roles::cluster_role_bindings(&config.gates).into_iter();
    wanted.extend(bindings.map(|b| ((RBAC, "v1", "clusterrolebindings"), cluster(), b)));
    wanted.extend(roles::roles().into_iter().map(|(n, r)| ((RBAC, "v1", "roles"), n.to_owned(), r)));
    wanted.extend(roles::role_bindings().into_iter().map(|(n, b)| ((RBAC, "v1", "rolebindings"), n.to_owned(), b)));
    let flow = flow::bootstrap::GROUP;
    wanted.extend(
        flow::bootstrap::levels().into_iter().map(|l| ((flow, "v1", "prioritylevelconfigurations"), cluster(), l)),
    );
    wanted.extend(flow::bootstrap::schemas().into_iter().map(|s| ((flow, "v1", "flowschemas"), cluster(), s)));
    wanted.extend(system::priority_classes().map(|c| (("scheduling.k8s.io", "v1", "priorityclasses"), cluster(), c)));
    if config.args.enable_bootstrap_token_auth {
        let public = || "kube-public".to_owned();
        let bindings = joining::cluster_role_bindings();
        wanted.extend(bindings.map(|b| ((RBAC, "v1", "clusterrolebindings"), cluster(), b)));
        let [role, binding] = joining::reader();
        wanted.push(((RBAC, "v1", "roles"), public(), role));
        wanted.push(((RBAC, "v1", "rolebindings"), public(), binding));
        if let Some(authority) = &authorities.serving {
            let info = joining::cluster_info(&config.advertised_url(), authority);
            wanted.push((("", "v1", "configmaps"), public(), info));
        }
    }
    wanted.push((("", "v1", "configmaps"), "kube-system".into(), system::token_tracking()));
    wanted.push((("networking.k8s.io", "v1", "servicecidrs"), cluster(), system::service_cidr(config)));
    Ok(write_all(server, wanted).await)
}

async fn announce_or_tell(server: &ApiServer) -> bool {
    let told = |error: &crate::status::ApiError| tracing::error!(%error, "an API version is refused and tried again");
    announce_versions(server).await.inspect_err(told).is_ok()
}

/// Makes the APIService of every group version and says that it is available.
async fn announce_versions(server: &ApiServer) -> Result<()> {
    let place = ("apiregistration.k8s.io", "v1", "apiservices");
    let set = server.resources.current();
    let Some(resource) = set.lookup(place.0, place.1, place.2) else { return Ok(()) };
    let options = WriteOptions { manager: "kube-apiserver".into(), ..WriteOptions::default() };
    let (resource, options) = (&resource, &options);
    let announced = api_services::all(&set).into_iter().map(|object| async move {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if server.store.get(&resource.storage, "", &name).is_some() {
            return Ok(());
        }
        create_missing(server, place, "", &object).await?;
        let target = Target { resource, subresource: "status", namespace: "", name: &name };
        let status = write::update(server, target, options, |_, old| {
            let mut value = old.clone();
            value["status"] = api_services::available();
            Ok(value)
        });
        status.await.map(|_| ())
    });
    futures_util::future::try_join_all(announced).await.map(|_| ())
}

/// Group, version and plural.
type Place = (&'static str, &'static str, &'static str);

/// Creates an object unless one of its name is there; one that is there is put right, as far as it is ours.
async fn create_missing(server: &ApiServer, place: Place, namespace: &str, object: &Value) -> Result<()> {
    let mut attempt = 1;
    loop {
        match settle(server, place, namespace, object).await {
            // Another server was at it.
            Err(error) if attempt < ATTEMPTS && (error.is_not_found() || error.is_conflict()) => attempt += 1,
            outcome => return outcome,
        }
    }
}

async fn settle(server: &ApiServer, (group, version, plural): Place, namespace: &str, object: &Value) -> Result<()> {
    // What `--runtime-config` switched off has no objects either.
    let Some(resource) = server.resources.lookup(group, version, plural) else { return Ok(()) };
    let step = |have: &Value| match group {
        RBAC => reconcile::step(object, have),
        _ => keeper::step(plural, object, have),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    if let Some(found) = server.store.get(&resource.storage, namespace, &name) {
        let target = Target { resource: &resource, subresource: "", namespace, name: &name };
        match step(&found.value()) {
            Step::Keep => return Ok(()),
            Step::Write(_) => return complete(server, target, step).await,
            Step::MakeAnew => {
                let options = DeleteOptions { uid: Some(found.keys.uid.to_string()), ..DeleteOptions::default() };
                drop(write::delete(server, &resource, namespace, &name, &options).await?);
            }
        }
    }
    let manager = if group == flow::bootstrap::GROUP { flow::bootstrap::PRODUCER } else { "kube-apiserver" };
    let options = WriteOptions { manager: manager.into(), ..WriteOptions::default() };
    let user = User::system("system:apiserver");
    match write::create(server, &resource, namespace, object.clone(), &options, &user).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

/// Puts an object right as it is now.
async fn complete(server: &ApiServer, target: Target<'_>, step: impl Fn(&Value) -> Step) -> Result<()> {
    tracing::info!(resource = %target.resource.plural, name = target.name, "a bootstrap object is put right");
    let options = WriteOptions { manager: "kube-apiserver".into(), ..WriteOptions::default() };
    let written = write::update(server, target, &options, |_, have| match step(have) {
        Step::Write(value) => Ok(value),
        _ => Ok(have.clone()),
    });
    written.await.map(|_| ())
}
