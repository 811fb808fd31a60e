//! Media types that operations say they take and give.

use super::routes::{Action, Route};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const CBOR: &str = "application/cbor";
const ANY: &str = "*/*";

/// What lists of groups and of resources are given in.
pub(super) const DISCOVERY: [&str; 3] = [JSON, YAML, PROTOBUF];

/// What the body of an operation may be. Whether it has one at all does not count.
pub(super) fn consumed(route: &Route<'_>, action: Action, cbor: bool) -> Vec<&'static str> {
    let custom = route.resource.custom;
    match action {
        Action::Patch => {
            let mut out = vec!["application/json-patch+json", "application/merge-patch+json"];
            if !custom {
                // Only types with merge keys have these.
                out.push("application/strategic-merge-patch+json");
            }
            out.push("application/apply-patch+yaml");
            if cbor && !custom {
                out.push("application/apply-patch+cbor");
            }
            out
        }
        _ if custom => vec![JSON, YAML],
        _ => vec![ANY],
    }
}

/// What an operation may answer in.
pub(super) fn produced(route: &Route<'_>, action: Action, cbor: bool) -> Vec<&'static str> {
    if route.resource.custom {
        return vec![JSON, YAML];
    }
    if action == Action::Connect {
        return vec![ANY];
    }
    let mut out = Vec::new();
    if route.is_text(action) {
        out.push("text/plain");
    }
    out.extend(DISCOVERY);
    let cbor = |name| cbor.then_some(name);
    out.extend(cbor(CBOR));
    if matches!(action, Action::List | Action::Watch | Action::WatchList) {
        out.extend(["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"]);
        out.extend(cbor("application/cbor-seq"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::routes;
    use super::*;
    use crate::resource::{Resource, table};

    /// What one operation takes and gives.
    fn of(resource: &Resource, path: &str, action: Action, cbor: bool) -> (String, String) {
        let all = routes::of(resource);
        let route = all.iter().find(|route| route.path.ends_with(path)).expect("there is such a path");
        assert!(route.operations.iter().any(|(_, there)| *there == action), "{action:?} at {path}");
        (consumed(route, action, cbor).join(" "), produced(route, action, cbor).join(" "))
    }

    #[test]
    fn media_types_are_those_of_the_verb() {
        let all = table::built_in();
        let pods = all.iter().find(|r| &*r.plural == "pods").expect("pods are built in");
        const PLAIN: &str = "application/json application/yaml application/vnd.kubernetes.protobuf";
        const STREAMS: &str = "application/json;stream=watch application/vnd.kubernetes.protobuf;stream=watch";
        const PATCHES: &str = "application/json-patch+json application/merge-patch+json \
                               application/strategic-merge-patch+json application/apply-patch+yaml";
        for (path, action, takes, gives) in [
            ("/pods/{name}", Action::Get, ANY, PLAIN.to_owned()),
            ("/pods/{name}", Action::Put, ANY, PLAIN.to_owned()),
            ("/pods/{name}", Action::Delete, ANY, PLAIN.to_owned()),
            ("/pods/{name}/status", Action::Patch, PATCHES, PLAIN.to_owned()),
            ("{namespace}/pods", Action::List, ANY, format!("{PLAIN} {STREAMS}")),
            ("/watch/pods", Action::WatchList, ANY, format!("{PLAIN} {STREAMS}")),
            ("/log", Action::Get, ANY, format!("text/plain {PLAIN}")),
            ("/exec", Action::Connect, ANY, ANY.to_owned()),
        ] {
            assert_eq!(of(pods, path, action, false), (takes.to_owned(), gives), "{action:?} at {path}");
        }
        let (takes, gives) = of(pods, "/pods/{name}", Action::Patch, true);
        assert!(takes.ends_with(" application/apply-patch+cbor") && gives.ends_with(" application/cbor"));
        assert!(of(pods, "{namespace}/pods", Action::List, true).1.ends_with(" application/cbor-seq"));
    }
}
