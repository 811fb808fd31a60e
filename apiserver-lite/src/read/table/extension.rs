//! Rows of the kinds that extend, authorize and limit: admission, API services, certificates, RBAC, flow control, policy,
//! scheduling and device classes.

use serde_json::{Value, json};

use super::{Cells, Column, age, human_duration, or_none};

const TEXT: &str = "string";
const NUMBER: &str = "integer";
const BOOL: &str = "boolean";

pub(super) fn printer(group: &str, plural: &str) -> Option<(&'static [Column], Cells)> {
    Some(match (group, plural) {
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations" | "validatingwebhookconfigurations") => {
            (&[Column("Webhooks", NUMBER, 0), Column("Age", TEXT, 0)], |v| vec![count(&v["webhooks"]), age(v)])
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicies") => {
            (&[Column("Validations", NUMBER, 0), Column("ParamKind", TEXT, 0), Column("Age", TEXT, 0)], |v| {
                vec![count(&v["spec"]["validations"]), param_kind(v), age(v)]
            })
        }
        ("admissionregistration.k8s.io", "mutatingadmissionpolicies") => {
            (&[Column("Mutations", NUMBER, 0), Column("ParamKind", TEXT, 0), Column("Age", TEXT, 0)], |v| {
                vec![count(&v["spec"]["mutations"]), param_kind(v), age(v)]
            })
        }
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings") => {
            (&[Column("PolicyName", TEXT, 0), Column("ParamRef", TEXT, 0), Column("Age", TEXT, 0)], |v| {
                vec![text(&v["spec"]["policyName"]), param_ref(&v["spec"]["paramRef"]), age(v)]
            })
        }
        ("apiregistration.k8s.io", "apiservices") => {
            (&[Column("Service", TEXT, 0), Column("Available", TEXT, 0), Column("Age", TEXT, 0)], api_service)
        }
        ("certificates.k8s.io", "certificatesigningrequests") => (
            &[
                Column("Age", TEXT, 0),
                Column("SignerName", TEXT, 0),
                Column("Requestor", TEXT, 0),
                Column("RequestedDuration", TEXT, 0),
                Column("Condition", TEXT, 0),
            ],
            signing_request,
        ),
        ("certificates.k8s.io", "clustertrustbundles") => {
            (&[Column("SignerName", TEXT, 0)], |v| vec![or_none(&v["spec"]["signerName"])])
        }
        ("coordination.k8s.io", "leasecandidates") => (
            &[
                Column("LeaseName", TEXT, 0),
                Column("BinaryVersion", TEXT, 0),
                Column("EmulationVersion", TEXT, 0),
                Column("Age", TEXT, 0),
            ],
            |v| {
                let part = |key: &str| text(&v["spec"][key]);
                vec![part("leaseName"), part("binaryVersion"), part("emulationVersion"), age(v)]
            },
        ),
        ("internal.apiserver.k8s.io", "storageversions") => (
            &[Column("CommonEncodingVersion", TEXT, 0), Column("StorageVersions", TEXT, 0), Column("Age", TEXT, 0)],
            |v| {
                let common = v["status"]["commonEncodingVersion"].as_str().unwrap_or("<unset>");
                vec![common.into(), storage_versions(&v["status"]["storageVersions"]), age(v)]
            },
        ),
        ("storagemigration.k8s.io", "storageversionmigrations") => (&[Column("Resource", TEXT, 0)], |v| {
            let part = |key: &str| v["spec"]["resource"][key].as_str().unwrap_or_default();
            vec![format!("{}.{}", part("resource"), part("group")).into()]
        }),
        ("rbac.authorization.k8s.io", "rolebindings" | "clusterrolebindings") => (
            &[
                Column("Role", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("Users", TEXT, 1),
                Column("Groups", TEXT, 1),
                Column("ServiceAccounts", TEXT, 1),
            ],
            role_binding,
        ),
        ("policy", "poddisruptionbudgets") => (
            &[
                Column("Min Available", TEXT, 0),
                Column("Max Unavailable", TEXT, 0),
                Column("Allowed Disruptions", NUMBER, 0),
                Column("Age", TEXT, 0),
            ],
            |v| {
                let bound = |key: &str| match &v["spec"][key] {
                    Value::Null => "N/A".into(),
                    Value::Number(number) => number.to_string().into(),
                    other => other.clone(),
                };
                let allowed = number(&v["status"]["disruptionsAllowed"]);
                vec![bound("minAvailable"), bound("maxUnavailable"), allowed, age(v)]
            },
        ),
        ("scheduling.k8s.io", "priorityclasses") => (
            &[
                Column("Value", NUMBER, 0),
                Column("Global-Default", BOOL, 0),
                Column("Age", TEXT, 0),
                Column("PreemptionPolicy", TEXT, 0),
            ],
            |v| vec![number(&v["value"]), flag(&v["globalDefault"], false), age(v), text(&v["preemptionPolicy"])],
        ),
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => (
            &[
                Column("PriorityLevel", TEXT, 0),
                Column("MatchingPrecedence", TEXT, 0),
                Column("DistinguisherMethod", TEXT, 0),
                Column("Age", TEXT, 0),
                Column("MissingPL", TEXT, 0),
            ],
            flow_schema,
        ),
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => (
            &[
                Column("Type", TEXT, 0),
                Column("NominalConcurrencyShares", TEXT, 0),
                Column("Queues", TEXT, 0),
                Column("HandSize", TEXT, 0),
                Column("QueueLengthLimit", TEXT, 0),
                Column("Age", TEXT, 0),
            ],
            |v| {
                let limited = &v["spec"]["limited"];
                let queuing = &limited["limitResponse"]["queuing"];
                let of = |part: &Value, key: &str| if part.is_object() { number(&part[key]) } else { "<none>".into() };
                vec![
                    text(&v["spec"]["type"]),
                    of(limited, "nominalConcurrencyShares"),
                    of(queuing, "queues"),
                    of(queuing, "handSize"),
                    of(queuing, "queueLengthLimit"),
                    age(v),
                ]
            },
        ),
        ("resource.k8s.io", "deviceclasses" | "resourceclaimtemplates") => {
            (&[Column("Age", TEXT, 0)], |v| vec![age(v)])
        }
        ("resource.k8s.io", "resourceclaims") => {
            (&[Column("State", TEXT, 0), Column("Age", TEXT, 0)], |v| vec![claim_state(v), age(v)])
        }
        ("resource.k8s.io", "resourceslices") => (
            &[Column("Node", TEXT, 0), Column("Driver", TEXT, 0), Column("Pool", TEXT, 0), Column("Age", TEXT, 0)],
            |v| {
                let spec = &v["spec"];
                vec![text(&spec["nodeName"]), text(&spec["driver"]), text(&spec["pool"]["name"]), age(v)]
            },
        ),
        _ => return None,
    })
}

fn text(value: &Value) -> Value {
    value.as_str().unwrap_or_default().into()
}

fn number(value: &Value) -> Value {
    json!(value.as_i64().unwrap_or(0))
}

fn flag(value: &Value, default: bool) -> Value {
    value.as_bool().unwrap_or(default).into()
}

fn count(list: &Value) -> Value {
    json!(list.as_array().map_or(0, Vec::len))
}

fn param_kind(v: &Value) -> Value {
    let kind = &v["spec"]["paramKind"];
    match (kind["apiVersion"].as_str(), kind["kind"].as_str()) {
        (Some(version), Some(kind)) => format!("{version}/{kind}").into(),
        _ => "<unset>".into(),
    }
}

fn param_ref(reference: &Value) -> Value {
    match (reference["namespace"].as_str().unwrap_or_default(), reference["name"].as_str().unwrap_or_default()) {
        (_, "") if reference["selector"].is_object() => go_selector(&reference["selector"]).into(),
        (_, "") => "<unset>".into(),
        ("", name) => name.into(),
        (namespace, name) => format!("{namespace}/{name}").into(),
    }
}

/// Which server writes what version.
fn storage_versions(versions: &Value) -> Value {
    let one = |version: &Value| {
        let part = |key: &str| version[key].as_str().unwrap_or_default();
        format!("{}={}", part("apiServerID"), part("encodingVersion"))
    };
    let all: Vec<String> = versions.as_array().into_iter().flatten().map(one).collect();
    if all.is_empty() { "<unset>".into() } else { super::endpoints::shortened(all, 3, ",") }
}

/// A label selector as its Go type prints itself.
fn go_selector(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().into_iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {},", value.as_str().unwrap_or_default())).collect();
    let requirement = |requirement: &Value| {
        let part = |key: &str| requirement[key].as_str().unwrap_or_default();
        let values = requirement["values"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let values = values.collect::<Vec<_>>().join(" ");
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", part("key"), part("operator"))
    };
    let all: String = selector["matchExpressions"].as_array().into_iter().flatten().map(requirement).collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{all}}},}}"
    )
}

fn api_service(v: &Value) -> Vec<Value> {
    let service = &v["spec"]["service"];
    let part = |key: &str| service[key].as_str().unwrap_or_default();
    let shown = if service.is_object() { format!("{}/{}", part("namespace"), part("name")) } else { "Local".into() };
    let condition = v["status"]["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "Available");
    let available = match condition {
        Some(condition) => {
            let part = |key: &str| condition[key].as_str().unwrap_or_default();
            match (part("status"), part("reason")) {
                ("True", _) => "True".to_owned(),
                (status, "") => status.to_owned(),
                (status, reason) => format!("{status} ({reason})"),
            }
        }
        None => "Unknown".to_owned(),
    };
    vec![shown.into(), available.into(), age(v)]
}

fn signing_request(v: &Value) -> Vec<Value> {
    let (spec, status) = (&v["spec"], &v["status"]);
    let has = |kind: &str| status["conditions"].as_array().into_iter().flatten().any(|c| c["type"] == kind);
    let mut state = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        state.push_str(",Failed");
    }
    if status["certificate"].as_str().is_some_and(|c| !c.is_empty()) {
        state.push_str(",Issued");
    }
    let duration = spec["expirationSeconds"].as_i64().map_or("<none>".into(), |s| human_duration(s).into());
    vec![age(v), or_none(&spec["signerName"]), text(&spec["username"]), duration, state.into()]
}

fn role_binding(v: &Value) -> Vec<Value> {
    let of_kind = |kind: &str| -> Value {
        let subjects = v["subjects"].as_array().into_iter().flatten().filter(|s| s["kind"] == kind);
        let names: Vec<String> = subjects
            .map(|s| {
                let part = |key: &str| s[key].as_str().unwrap_or_default();
                match part("namespace") {
                    namespace if kind == "ServiceAccount" && !namespace.is_empty() => {
                        format!("{namespace}/{}", part("name"))
                    }
                    _ => part("name").to_owned(),
                }
            })
            .collect();
        names.join(", ").into()
    };
    let part = |key: &str| v["roleRef"][key].as_str().unwrap_or_default();
    let role = format!("{}/{}", part("kind"), part("name"));
    vec![role.into(), age(v), of_kind("User"), of_kind("Group"), of_kind("ServiceAccount")]
}

fn flow_schema(v: &Value) -> Vec<Value> {
    let spec = &v["spec"];
    let conditions = v["status"]["conditions"].as_array();
    let dangling = conditions.into_iter().flatten().find(|c| c["type"] == "Dangling");
    vec![
        text(&spec["priorityLevelConfiguration"]["name"]),
        number(&spec["matchingPrecedence"]),
        or_none(&spec["distinguisherMethod"]["type"]),
        age(v),
        dangling.map_or("?".into(), |c| text(&c["status"])),
    ]
}

fn claim_state(v: &Value) -> Value {
    let deleted = v["metadata"]["deletionTimestamp"].is_string();
    let mut states = Vec::new();
    if deleted {
        states.push("deleted");
    }
    if !v["status"]["allocation"].is_object() {
        if !deleted {
            states.push("pending");
        }
    } else {
        states.push("allocated");
        if v["status"]["reservedFor"].as_array().is_some_and(|r| !r.is_empty()) {
            states.push("reserved");
        }
    }
    states.join(",").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_shows_its_subjects_by_kind() {
        let cells = role_binding(&json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [
            {"kind": "User", "name": "u"}, {"kind": "ServiceAccount", "namespace": "n", "name": "a"},
            {"kind": "ServiceAccount", "namespace": "n", "name": "b"}]}));
        assert_eq!(cells[0], "Role/r");
        assert_eq!(cells[2..], ["u", "", "n/a, n/b"]);
    }

    #[test]
    fn what_only_a_gate_brings_has_its_own_columns() {
        let cells = |group: &str, plural: &str, v: Value| printer(group, plural).expect("columns of its own").1(&v);
        let bundle = cells("certificates.k8s.io", "clustertrustbundles", json!({"spec": {}}));
        assert_eq!(bundle, ["<none>"]);
        let candidate = json!({"spec": {"leaseName": "l", "binaryVersion": "1.36", "emulationVersion": "1.35"}});
        assert_eq!(cells("coordination.k8s.io", "leasecandidates", candidate)[..3], ["l", "1.36", "1.35"]);
        let moved = json!({"spec": {"resource": {"group": "apps", "resource": "deployments"}}});
        assert_eq!(cells("storagemigration.k8s.io", "storageversionmigrations", moved), ["deployments.apps"]);
        let servers = ["a", "b", "c", "d"].map(|id| json!({"apiServerID": id, "encodingVersion": "v1"}));
        let versions =
            cells("internal.apiserver.k8s.io", "storageversions", json!({"status": {"storageVersions": servers}}));
        assert_eq!(versions[..2], ["<unset>", "a=v1,b=v1,c=v1 + 1 more..."]);
    }

    #[test]
    fn a_signing_request_shows_how_far_it_got() {
        let state = |status: Value| signing_request(&json!({"spec": {}, "status": status}))[4].clone();
        assert_eq!(state(json!({})), "Pending");
        assert_eq!(state(json!({"conditions": [{"type": "Approved"}], "certificate": "eA=="})), "Approved,Issued");
        assert_eq!(state(json!({"conditions": [{"type": "Denied"}, {"type": "Approved"}]})), "Denied");
    }

    #[test]
    fn parameters_are_shown_by_name_or_by_their_selector() {
        assert_eq!(param_ref(&json!({"name": "p", "namespace": "n"})), "n/p");
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]});
        let shown = "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{\
                     LabelSelectorRequirement{Key:c,Operator:In,Values:[x y],},},}";
        assert_eq!(param_ref(&json!({"selector": selector})), shown);
        assert_eq!(param_ref(&json!({})), "<unset>");
    }

    #[test]
    fn a_service_of_the_api_says_why_it_is_not_there() {
        let shown = |condition: Value| api_service(&json!({"status": {"conditions": [condition]}}))[1].clone();
        assert_eq!(shown(json!({"type": "Available", "status": "False", "reason": "Gone"})), "False (Gone)");
        assert_eq!(shown(json!({"type": "Available", "status": "False"})), "False");
    }

    #[test]
    fn a_claim_is_pending_until_it_is_allocated() {
        assert_eq!(claim_state(&json!({})), "pending");
        assert_eq!(claim_state(&json!({"status": {"allocation": {}, "reservedFor": [{}]}})), "allocated,reserved");
        assert_eq!(claim_state(&json!({"metadata": {"deletionTimestamp": "x"}})), "deleted");
    }
}
