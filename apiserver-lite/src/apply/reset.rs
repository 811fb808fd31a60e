//! Fields that a write through an endpoint cannot set, and that nobody owns because of such a write: the status on the
//! resource itself, everything else on the status subresource.

use super::element::Element;
use super::set::Set;
use crate::resource::Resource;

/// What of a set an endpoint may own.
#[derive(Debug)]
pub enum Reset {
    /// All but these paths and what is below them.
    Without(Set<'static>),
    /// Only what lies at or below one of these paths; `*` stands for any element.
    Only(&'static [&'static [&'static str]]),
}

impl Reset {
    /// The fields that a resource's endpoint leaves alone. `subresource` is empty for the resource itself.
    pub fn of(resource: &Resource, subresource: &str) -> Self {
        Reset::Without(Set::of_names(match subresource {
            "ephemeralcontainers" => return Reset::Only(&[&["spec", "ephemeralContainers"]]),
            // Upstream tells nobody what resizing leaves alone: who tries to change an image there owns it from then on.
            "resize" => &[],
            "status" => status(resource),
            "approval" => &[&["spec"], &["status", "certificate"]],
            "finalize" => &[&["status"]],
            // What is asked for stays as it was first sent: who sends it owns nothing of it.
            _ if is(resource, "certificates.k8s.io", "certificatesigningrequests") => &[&["spec"], &["status"]],
            _ if is(resource, "networking.k8s.io", "servicecidrs") => &[],
            _ if resource.subresource("status").is_some() => &[&["status"]],
            _ => &[],
        }))
    }

    #[must_use]
    pub fn filter<'a>(&self, set: Set<'a>) -> Set<'a> {
        match self {
            Reset::Without(paths) if paths.is_empty() || set.is_empty() => set,
            Reset::Without(paths) => set.without(paths),
            Reset::Only(paths) => only(&set, paths),
        }
    }
}

fn is(resource: &Resource, group: &str, plural: &str) -> bool {
    (&*resource.group, &*resource.plural) == (group, plural)
}

fn only<'a>(set: &Set<'a>, paths: &[&[&str]]) -> Set<'a> {
    let mut out = Set::new();
    for node in set.nodes() {
        let rest: Vec<&[&str]> = paths
            .iter()
            .filter_map(|path| path.split_first())
            .filter(|(first, _)| **first == "*" || matches!(&node.element, Element::Name(name) if name == *first))
            .map(|(_, rest)| rest)
            .collect();
        if rest.is_empty() {
            continue;
        }
        let children =
            if rest.iter().any(|r| r.is_empty()) { node.children.clone() } else { only(&node.children, &rest) };
        out.push(node.element.clone(), node.member, children);
    }
    out
}

/// What the status subresource of a kind leaves alone.
fn status(resource: &Resource) -> &'static [&'static [&'static str]] {
    const SPEC: &[&[&str]] = &[&["spec"]];
    const SPEC_AND_METADATA: &[&[&str]] = &[&["spec"], &["metadata"]];
    if resource.custom {
        return SPEC_AND_METADATA;
    }
    match (&*resource.group, &*resource.plural) {
        ("", "pods") => &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
        ("apps", "deployments") => &[&["spec"], &["metadata", "labels"]],
        ("certificates.k8s.io", _) => &[&["spec"], &["status", "conditions"]],
        // It tells what it leaves alone under a group that does not exist.
        ("networking.k8s.io", "servicecidrs") => &[],
        ("admissionregistration.k8s.io" | "apiextensions.k8s.io" | "apiregistration.k8s.io", _)
        | ("flowcontrol.apiserver.k8s.io", _)
        | ("storage.k8s.io", "volumeattachments") => SPEC_AND_METADATA,
        _ => SPEC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::Resources;

    #[test]
    fn endpoints_leave_alone_what_upstream_says_they_do() {
        let requests = ("certificates.k8s.io", "certificatesigningrequests");
        let ranges = ("networking.k8s.io", "servicecidrs");
        for ((group, plural), subresource, left) in [
            (("apps", "deployments"), "", &[&["status"][..]][..]),
            (("apps", "deployments"), "status", &[&["spec"], &["metadata", "labels"]]),
            (requests, "", &[&["spec"], &["status"]]),
            (requests, "approval", &[&["spec"], &["status", "certificate"]]),
            (("apiextensions.k8s.io", "customresourcedefinitions"), "status", &[&["spec"], &["metadata"]]),
            (ranges, "", &[]),
            (ranges, "status", &[]),
            (("networking.k8s.io", "networkpolicies"), "", &[]),
        ] {
            let resource = Resources::built_in().current().lookup(group, "v1", plural).expect("built in");
            let Reset::Without(set) = Reset::of(&resource, subresource) else { panic!("{plural}: only some") };
            assert_eq!(set, Set::of_names(left), "{plural} {subresource}");
        }
    }
}
