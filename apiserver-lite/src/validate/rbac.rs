//! Roles and their bindings.

use serde_json::Value;

use super::{list, text};
use crate::field_error::{Report, go_struct};
use crate::names;

const GROUP: &str = "rbac.authorization.k8s.io";

pub fn check(report: &mut Report, plural: &str, object: &Value) {
    let namespaced = !plural.starts_with("cluster");
    if plural.ends_with("roles") {
        report.each(object, "rules", |r, rule| policy_rule(r, rule, namespaced));
        r_aggregation(report, object);
        return;
    }
    report.at("roleRef", |r| {
        let reference = &object["roleRef"];
        let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
        for (name, known) in [("apiGroup", &[GROUP][..]), ("kind", kinds)] {
            let said = text(reference, name);
            if !known.contains(&said) {
                r.at(name, |r| r.not_supported(said, known));
            }
        }
        r.need_named(reference, "name", names::path_segment);
    });
    report.each(object, "subjects", |r, subject| one_subject(r, subject, namespaced));
}

fn r_aggregation(report: &mut Report, object: &Value) {
    report.with(object, "aggregationRule", |r, rule| {
        if list(rule, "clusterRoleSelectors").is_empty() {
            let why = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            r.miss("clusterRoleSelectors", why);
        }
        r.each(rule, "clusterRoleSelectors", super::selector::check);
    });
}

fn policy_rule(report: &mut Report, rule: &Value, namespaced: bool) {
    let some = |name: &str| !list(rule, name).is_empty();
    if !some("verbs") {
        report.miss("verbs", "verbs must contain at least one value");
    }
    if some("nonResourceURLs") {
        let urls = &rule["nonResourceURLs"];
        if namespaced {
            report.bad("nonResourceURLs", urls, "namespaced rules cannot apply to non-resource URLs");
        }
        if some("apiGroups") || some("resources") || some("resourceNames") {
            let why = "rules cannot apply to both regular resources and non-resource URLs";
            report.bad("nonResourceURLs", urls, why);
        }
        return;
    }
    if !some("apiGroups") {
        report.miss("apiGroups", "resource rules must supply at least one api group");
    }
    if !some("resources") {
        report.miss("resources", "resource rules must supply at least one resource");
    }
}

fn one_subject(report: &mut Report, subject: &Value, namespaced: bool) {
    let (kind, group) = (text(subject, "kind"), text(subject, "apiGroup"));
    report.need(subject, "name");
    match kind {
        "ServiceAccount" => {
            report.named(subject, "name", names::dns_subdomain);
            if !group.is_empty() {
                report.at("apiGroup", |r| r.not_supported(group, &[""]));
            }
            if !namespaced {
                report.need(subject, "namespace");
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                report.at("apiGroup", |r| r.not_supported(group, &[GROUP]));
            }
        }
        other => report.at("kind", |r| r.not_supported(other, &["ServiceAccount", "User", "Group"])),
    }
}

/// A binding's role is for ever.
pub fn update(report: &mut Report, new: &Value, old: &Value) {
    let (now, before) = (&new["roleRef"], &old["roleRef"]);
    if now != before {
        let [group, kind, name] = ["apiGroup", "kind", "name"].map(|key| Value::from(text(now, key)));
        let shown = go_struct(&[("APIGroup", &group), ("Kind", &kind), ("Name", &name)]);
        report.bad("roleRef", shown, "cannot change roleRef");
    }
}
