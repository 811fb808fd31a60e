//! What an object has to be, beyond its types: pure functions from trees to complaints.
//!
//! The write path calls [`create`] for every new object and [`update`] for every changed one, and answers 422 with all
//! complaints at once. Follows `pkg/apis/*/validation` and the strategies of `pkg/registry`: the order of complaints,
//! their words and even the same complaint told twice are upstream's, because clients and people match on them.
//!
//! Rules are small functions over a [`Report`], which holds the path; a kind's file lists them in upstream's order.
//! Where upstream walks a Go map, complaints come sorted by key.
//!
//! Limits: expressions in CEL are not compiled here; managed fields are checked where they are merged.

mod admission;
mod amounts;
mod autoscaling;
mod batch;
mod certificate;
mod claim;
mod config;
mod container;
mod cron;
mod device;
mod diff;
mod event;
mod flow;
mod gang;
mod ip;
mod meta;
mod network;
mod node;
mod pem;
mod pod;
mod pod_status;
mod pod_update;
mod probe;
mod quota;
mod rbac;
mod review;
mod scheduling;
mod security;
mod selector;
mod service;
mod shapes;
mod small;
mod storage;
#[cfg(test)]
mod tests;
mod trust;
mod versions;
mod volume;
mod warnings;
mod workload;

use serde_json::{Name, Value};

use crate::apply::spell_like;
use crate::field_error::{FieldError, Report, Rules};
use crate::resource::Resource;

pub use amounts::{is_extended, quantity};
pub use device::DEVICE_VARIABLES;
pub use pem::authorities;
#[cfg(test)]
pub use scheduling::tolerations;
pub use service::cluster_ips;
pub use warnings::{of_status, warnings};

/// Every complaint about a new object; none for a good one.
pub fn create(resource: &Resource, object: &Value, rules: Rules) -> Vec<FieldError> {
    let mut report = Report::by(rules);
    let (group, plural) = (&*resource.group, &*resource.plural);
    if resource.custom {
        whole(&mut report, group, plural, object);
        return report.errors;
    }
    match (group, plural) {
        // What events are checked for depends on the version that the client speaks.
        ("" | "events.k8s.io", "events") => event::create(&mut report, object, group.is_empty()),
        ("", "pods") => {
            metadata(&mut report, group, plural, object);
            pod::create(&mut report, object);
        }
        ("batch", "cronjobs") => {
            whole(&mut report, group, plural, object);
            batch::cron_job_name(&mut report, object);
        }
        ("networking.k8s.io", "ingresses") => {
            whole(&mut report, group, plural, object);
            network::ingress_class_annotation(&mut report, object);
        }
        _ => whole(&mut report, group, plural, object),
    }
    // Names that a kind has no rule for have to fit into a path at least.
    if report.errors.is_empty() {
        report.at("metadata", |r| meta::in_general(r, &object["metadata"]));
    }
    report.errors
}

/// Complaints about the service that a webhook runs in; `at` is its path.
pub fn webhook_service(at: &str, service: &Value) -> Vec<FieldError> {
    let mut report = Report::default();
    report.at(at, |r| admission::webhook_service(r, service));
    report.errors
}

/// Every complaint about a review of access, which is answered and never stored.
pub fn review(kind: &str, object: &Value) -> Vec<FieldError> {
    let mut report = Report::default();
    review::check(&mut report, kind, object);
    report.errors
}

/// Every complaint about a changed object. `subresource` is empty for the object as a whole.
pub fn update(resource: &Resource, subresource: &str, new: &Value, old: &Value, rules: Rules) -> Vec<FieldError> {
    let report = &mut Report::by(rules);
    let (group, plural) = (&*resource.group, &*resource.plural);
    // Every update is checked for metadata once in general; most kinds do it again.
    report.at("metadata", |r| {
        meta::in_general(r, &new["metadata"]);
        meta::in_general_updated(r, &new["metadata"], &old["metadata"]);
    });
    let respelled = in_spelling_of(resource, subresource, new, old);
    let old = respelled.as_ref().unwrap_or(old);
    if !resource.custom {
        report.kept = ip::kept(group, plural, new, old);
    }
    match (group, plural, subresource) {
        _ if resource.custom => unchanged(report, group, new, old),
        ("", "pods", "") => pod_update::update(report, new, old),
        ("", "pods", "status") => pod_status::status(report, new, old),
        ("", "pods", "ephemeralcontainers") => pod_update::ephemeral(report, new, old),
        ("", "pods", "resize") => pod_update::resize(report, new, old),
        ("certificates.k8s.io", "certificatesigningrequests", _) => {
            whole(report, group, plural, new);
            certificate::update(report, new, old, subresource);
        }
        (_, _, "status") if plural != "volumeattachments" => {
            unchanged(report, group, new, old);
            status(report, group, plural, new, old);
        }
        ("" | "events.k8s.io", "events", _) => event::update(report, new, old, group.is_empty()),
        ("", "namespaces", "finalize") => {
            unchanged(report, group, new, old);
            config::namespace_finalizers(report, new);
        }
        ("certificates.k8s.io", "clustertrustbundles", _) => {
            metadata(report, group, plural, new);
            report.at("spec", |r| trust::bundle(r, &new["spec"], &old["spec"]));
            unchanged(report, group, new, old);
        }
        ("certificates.k8s.io", "podcertificaterequests", _) => {
            unchanged(report, group, new, old);
            if !crate::field_error::same(&new["spec"], &old["spec"]) {
                let kind = "k8s.io.api.certificates.v1beta1.PodCertificateRequestSpec";
                report.bad("spec", crate::go_schema::shown(kind, &new["spec"]), crate::field_error::IMMUTABLE);
            }
        }
        ("scheduling.k8s.io", "workloads" | "podgroups", _) => {
            unchanged(report, group, new, old);
            gang::update(report, new, old);
        }
        ("internal.apiserver.k8s.io", ..) => {}
        ("autoscaling", ..) => {
            unchanged(report, group, new, old);
            report.at("spec", |r| autoscaling::check(r, &new["spec"], &old["spec"]));
        }
        ("resource.k8s.io", ..) => {
            unchanged(report, group, new, old);
            device::update(report, plural, new, old);
        }
        ("rbac.authorization.k8s.io", ..) => {
            whole(report, group, plural, new);
            unchanged(report, group, new, old);
            rbac::update(report, new, old);
        }
        // These do not look at metadata again.
        ("admissionregistration.k8s.io" | "discovery.k8s.io" | "flowcontrol.apiserver.k8s.io" | "policy", ..) => {
            whole(report, group, plural, new);
            changed(report, group, plural, new, old);
        }
        // What may change is told before what has to be right in any case.
        ("", "secrets" | "configmaps" | "services", _) | ("networking.k8s.io", "ingressclasses", _) => {
            unchanged(report, group, new, old);
            changed(report, group, plural, new, old);
            whole(report, group, plural, new);
        }
        // What has to be right in any case is told before what may change.
        ("", "namespaces" | "nodes", _)
        | ("storage.k8s.io", "storageclasses" | "volumeattributesclasses", _)
        | ("node.k8s.io", "runtimeclasses", _)
        | ("networking.k8s.io", "ipaddresses" | "servicecidrs", _) => {
            whole(report, group, plural, new);
            unchanged(report, group, new, old);
            changed(report, group, plural, new, old);
        }
        // Checked like a new object, and by the check of changes once more. What found nothing the first time has
        // nothing to find the second.
        ("apps", "replicasets" | "daemonsets", _) | ("batch", "jobs", _) | ("", "replicationcontrollers", _) => {
            let sound = report.sound(|r| whole(r, group, plural, new));
            unchanged(report, group, new, old);
            match plural {
                _ if sound => {}
                "jobs" => report.at("spec", |r| batch::whole_spec(r, &new["spec"])),
                _ => body(report, group, plural, new),
            }
            changed(report, group, plural, new, old);
        }
        ("", "persistentvolumes" | "persistentvolumeclaims", _)
        | ("storage.k8s.io", "csinodes" | "volumeattachments", _) => {
            let sound = report.sound(|r| whole(r, group, plural, new));
            if plural == "persistentvolumeclaims" {
                unchanged(report, group, new, old);
            }
            if !sound {
                whole(report, group, plural, new);
            }
            changed(report, group, plural, new, old);
        }
        ("", "limitranges", _) => whole(report, group, plural, new),
        // Only what may change is checked.
        ("storage.k8s.io", "csidrivers", _) | ("scheduling.k8s.io", "priorityclasses", _) => {
            unchanged(report, group, new, old);
            changed(report, group, plural, new, old);
        }
        // The name was checked when the object was made.
        ("apps", "deployments" | "statefulsets", _)
        | ("batch" | "coordination.k8s.io", ..)
        | ("", "podtemplates" | "resourcequotas", _)
        | ("networking.k8s.io", "networkpolicies", _) => {
            unchanged(report, group, new, old);
            body(report, group, plural, new);
            changed(report, group, plural, new, old);
        }
        _ => {
            unchanged(report, group, new, old);
            whole(report, group, plural, new);
            changed(report, group, plural, new, old);
        }
    }
    std::mem::take(&mut report.errors)
}

fn metadata(report: &mut Report, group: &str, plural: &str, object: &Value) {
    let metadata = &object["metadata"];
    report.at("metadata", |r| match (group, plural) {
        ("certificates.k8s.io", "clustertrustbundles") => {
            meta::check_as(r, group, metadata, |name| trust::bundle_name(name, text(&object["spec"], "signerName")));
        }
        ("internal.apiserver.k8s.io", "storageversions") => meta::check_as(r, group, metadata, versions::stored_name),
        ("apiregistration.k8s.io", _) => {
            meta::check_as(r, group, metadata, |name| small::api_service_name(name, &object["spec"]));
        }
        _ => meta::check(r, group, plural, metadata),
    });
}

fn unchanged(report: &mut Report, group: &str, new: &Value, old: &Value) {
    report.at("metadata", |r| meta::update(r, group, &new["metadata"], &old["metadata"]));
}

/// The old object in the spelling of the new one, so that what is immutable can be compared as trees though one of them
/// spells out what the other leaves to the server. None where the trees do not differ or nobody compares them.
fn in_spelling_of(resource: &Resource, subresource: &str, new: &Value, old: &Value) -> Option<Value> {
    const APART: [&str; 4] = ["metadata", "status", "kind", "apiVersion"];
    let compared = match (&*resource.group, &*resource.plural) {
        // What is wanted has just been put back as it was.
        _ if subresource == "status" => false,
        // The bulk of what changes all the time has no such parts, or sees to it itself.
        ("", "pods") => !subresource.is_empty(),
        ("", "events" | "endpoints" | "configmaps" | "secrets") => false,
        ("events.k8s.io" | "discovery.k8s.io" | "coordination.k8s.io" | "apiextensions.k8s.io", _) => false,
        _ => !resource.custom,
    };
    let (now, was) = (new.as_object()?, old.as_object()?);
    let wanted = |(key, _): &(&Name, &Value)| !APART.contains(&key.as_str());
    if !compared || now.iter().filter(wanted).eq(was.iter().filter(wanted)) {
        return None;
    }
    let mut was = was.clone();
    spell_like(resource.stored.set(), resource.stored.id, &mut was, now);
    Some(Value::Object(was))
}

fn whole(report: &mut Report, group: &str, plural: &str, object: &Value) {
    metadata(report, group, plural, object);
    body(report, group, plural, object);
}

/// All of an object but its metadata, as it has to be at any time.
fn body(report: &mut Report, group: &str, plural: &str, object: &Value) {
    let spec = &object["spec"];
    let mut at_spec = |check: fn(&mut Report, &Value)| report.at("spec", |r| check(r, spec));
    match (group, plural) {
        ("", "podtemplates") => report.at("template", |r| pod::template(r, &object["template"])),
        ("", "replicationcontrollers") => at_spec(workload::replication_controller),
        ("", "services") => service::check(report, object),
        ("", "endpoints") => network::endpoints(report, object),
        ("", "nodes") => node::check(report, object),
        ("", "configmaps") => config::config_map(report, object),
        ("", "secrets") => config::secret(report, object),
        ("", "namespaces") => config::namespace(report, object),
        ("", "limitranges") => quota::limit_range(report, spec),
        ("", "resourcequotas") => quota::resource_quota(report, object),
        ("", "persistentvolumes") => claim::volume(report, object),
        ("", "persistentvolumeclaims") => at_spec(claim::spec),
        ("apps", "deployments") => at_spec(workload::deployment),
        ("apps", "replicasets") => at_spec(workload::replica_set),
        ("apps", "daemonsets") => at_spec(workload::daemon_set),
        ("apps", "statefulsets") => at_spec(workload::stateful_set),
        ("apps", "controllerrevisions") => workload::revision(report, object),
        ("batch", "jobs") => batch::job(report, object),
        ("batch", "cronjobs") => at_spec(batch::cron_job),
        ("autoscaling", _) => report.at("spec", |r| autoscaling::check(r, spec, &Value::Null)),
        ("networking.k8s.io", "ingresses") => network::ingress(report, object),
        ("networking.k8s.io", "ingressclasses") => at_spec(network::ingress_class),
        ("networking.k8s.io", "networkpolicies") => at_spec(network::policy),
        ("networking.k8s.io", "ipaddresses") => at_spec(network::ip_address),
        ("networking.k8s.io", "servicecidrs") => at_spec(network::service_ranges),
        ("discovery.k8s.io", "endpointslices") => network::endpoint_slice(report, object),
        ("rbac.authorization.k8s.io", plural) => rbac::check(report, plural, object),
        ("policy", "poddisruptionbudgets") => at_spec(small::disruption_budget),
        ("coordination.k8s.io", "leases") => at_spec(small::lease),
        ("coordination.k8s.io", "leasecandidates") => at_spec(small::lease_candidate),
        ("scheduling.k8s.io", "priorityclasses") => small::priority_class(report, object),
        ("scheduling.k8s.io", "workloads") => at_spec(gang::workload),
        ("scheduling.k8s.io", "podgroups") => at_spec(gang::group),
        ("certificates.k8s.io", "clustertrustbundles") => report.at("spec", |r| trust::bundle(r, spec, &Value::Null)),
        ("certificates.k8s.io", "podcertificaterequests") => at_spec(trust::request),
        ("storagemigration.k8s.io", "storageversionmigrations") => at_spec(versions::migration),
        ("internal.apiserver.k8s.io", "storageversions") => {
            report.at("status", |r| versions::stored(r, &object["status"]));
        }
        ("node.k8s.io", "runtimeclasses") => small::runtime_class(report, object),
        ("storage.k8s.io", plural) => storage::check(report, plural, object),
        ("certificates.k8s.io", "certificatesigningrequests") => certificate::check(report, object),
        ("admissionregistration.k8s.io", plural) => admission::check(report, plural, object),
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => flow::schema(report, object),
        ("flowcontrol.apiserver.k8s.io", _) => flow::priority_level(report, object),
        ("apiregistration.k8s.io", "apiservices") => small::api_service(report, object),
        ("resource.k8s.io", plural) => device::create(report, plural, object),
        _ => {}
    }
}

/// What an update may not change.
fn changed(report: &mut Report, group: &str, plural: &str, new: &Value, old: &Value) {
    let fixed = |report: &mut Report, names: &[&str]| {
        report.at("spec", |r| names.iter().for_each(|name| r.immutable(&new["spec"], &old["spec"], name)));
    };
    match (group, plural) {
        ("", "secrets" | "configmaps") => config::frozen(report, new, old, plural),
        ("", "services") => service::update(report, new, old),
        ("", "nodes") => node::update(report, new, old),
        ("", "persistentvolumes") => claim::volume_update(report, new, old),
        ("", "persistentvolumeclaims") => claim::update(report, new, old),
        ("", "resourcequotas") => quota::update(report, new, old),
        ("apps", "deployments" | "replicasets" | "daemonsets") => workload::selector_fixed(report, new, old),
        ("apps", "statefulsets") => workload::stateful_set_update(report, new, old),
        ("apps", "controllerrevisions") => report.immutable(new, old, "data"),
        ("batch", "jobs") => report.at("spec", |r| batch::update(r, new, old)),
        ("networking.k8s.io", "ingressclasses") => fixed(report, &["controller"]),
        ("networking.k8s.io", "ipaddresses") => network::ip_address_update(report, new, old),
        ("networking.k8s.io", "servicecidrs") => network::service_ranges_update(report, new, old),
        ("discovery.k8s.io", "endpointslices") => report.immutable(new, old, "addressType"),
        ("coordination.k8s.io", "leasecandidates") => fixed(report, &["leaseName"]),
        ("scheduling.k8s.io", "priorityclasses") => small::priority_class_update(report, new, old),
        ("storagemigration.k8s.io", _) => versions::migration_update(report, new, old),
        ("node.k8s.io", "runtimeclasses") => report.immutable(new, old, "handler"),
        ("storage.k8s.io", plural) => storage::update(report, plural, new, old),
        _ => {}
    }
}

fn status(report: &mut Report, group: &str, plural: &str, new: &Value, old: &Value) {
    match (group, plural) {
        ("apps", _) | ("", "replicationcontrollers") => workload::status(report, plural, new, old),
        ("batch", "jobs") => batch::status(report, new, old),
        ("", "namespaces") => config::namespace_status(report, new),
        ("", "services") => service::status(report, new),
        ("networking.k8s.io", "ingresses") => report.at("status", |r| {
            r.at("loadBalancer", |r| service::load_balancer(r, &new["status"]["loadBalancer"], false));
        }),
        ("", "nodes") => node::update(report, new, old),
        ("", "persistentvolumeclaims") => report.at("status", |r| claim::status(r, &new["status"])),
        ("flowcontrol.apiserver.k8s.io", _) => report.at("status", |r| flow::status(r, &new["status"])),
        ("apiregistration.k8s.io", _) => report.at("status", |r| small::api_service_status(r, &new["status"])),
        ("", "resourcequotas") => report.at("status", |r| quota::status(r, &new["status"])),
        ("autoscaling", _) => report.at("status", |r| {
            r.not_negative(&new["status"], "currentReplicas");
            r.not_negative(&new["status"], "desiredReplicas");
        }),
        ("resource.k8s.io", _) => device::status(report, plural, new, old),
        ("certificates.k8s.io", "podcertificaterequests") => trust::answer(report, new, old),
        ("scheduling.k8s.io", "podgroups") => gang::status(report, new),
        ("storagemigration.k8s.io", _) => versions::migration_status(report, new, old),
        ("internal.apiserver.k8s.io", _) => report.at("status", |r| versions::stored(r, &new["status"])),
        ("policy", "poddisruptionbudgets") => report.at("status", |r| {
            meta::conditions(r, &new["status"]);
            for name in ["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"] {
                r.not_negative(&new["status"], name);
            }
        }),
        _ => {}
    }
}

/// Every complaint about the metadata of an object inside of another; a name is not asked for.
pub fn embedded_metadata(metadata: &Value) -> Vec<FieldError> {
    let mut report = Report::default();
    let mut metadata = metadata.clone();
    if let Some(map) = metadata.as_object_mut()
        && map.get("name").is_none_or(|name| name == "")
    {
        map.insert("name".into(), "nameless".into());
    }
    // Such objects are of any kind, so their names may be anything that fits into a path.
    report.at("metadata", |r| meta::check(r, "rbac.authorization.k8s.io", "", &metadata));
    report.errors
}

/// Text of a property; empty where it is absent.
fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Items of a list property; none where it is absent.
fn list<'a>(object: &'a Value, name: &str) -> &'a [Value] {
    object.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Texts of a list property, as many as it has items.
fn texts<'a>(object: &'a Value, name: &str) -> Vec<&'a str> {
    list(object, name).iter().map(|item| item.as_str().unwrap_or_default()).collect()
}

/// The names of the items of a list.
fn names_of<'a>(object: &'a Value, name: &str) -> Vec<&'a str> {
    list(object, name).iter().map(|item| text(item, "name")).collect()
}

/// Whether a property is there.
fn has(object: &Value, name: &str) -> bool {
    object.get(name).is_some_and(|v| !v.is_null())
}
