//! Groups of pods that are scheduled together, and the workloads that describe them.

use serde_json::Value;

use super::{has, list, meta};
use crate::field_error::{IMMUTABLE, Report, same};
use crate::names;

const TEMPLATES: usize = 8;
const CLAIMS: usize = 4;

/// The spec of a workload.
pub fn workload(report: &mut Report, spec: &Value) {
    report.with(spec, "controllerRef", |r, controller| {
        r.named(controller, "apiGroup", names::dns_subdomain);
        r.need_named(controller, "kind", names::path_segment);
        r.need_named(controller, "name", names::path_segment);
    });
    let templates = list(spec, "podGroupTemplates");
    match templates.len() {
        0 => return report.miss("podGroupTemplates", "must have at least one item"),
        count if count > TEMPLATES => {
            return report.at("podGroupTemplates", |r| r.too_many(count, TEMPLATES));
        }
        _ => {}
    }
    report.items(spec, "podGroupTemplates", |r, index, template| {
        if templates[..index].iter().any(|before| before["name"] == template["name"]) {
            r.duplicate(template);
        }
        r.need_named(template, "name", names::dns_label);
        policies(r, template);
    });
}

/// The spec of a group.
pub fn group(report: &mut Report, spec: &Value) {
    report.with(spec, "podGroupTemplateRef", |r, reference| match &reference["workload"] {
        Value::Null => r.invalid("", "must specify one of: `workload`"),
        workload => r.at("workload", |r| {
            r.need_named(workload, "workloadName", names::dns_subdomain);
            r.need_named(workload, "podGroupTemplateName", names::dns_label);
        }),
    });
    policies(report, spec);
}

/// What a group and its template have in common.
fn policies(report: &mut Report, spec: &Value) {
    let policy = &spec["schedulingPolicy"];
    report.at("schedulingPolicy", |r| match (has(policy, "basic"), has(policy, "gang")) {
        (false, false) => r.invalid("", "must specify one of: `basic`, `gang`"),
        (true, true) => {
            r.invalid("{`basic`, `gang`}", "exactly one of `basic`, `gang` is required, but multiple fields are set");
        }
        (true, false) => {}
        (false, true) => r.at("gang", |r| match policy["gang"]["minCount"].as_i64().unwrap_or(0) {
            0 => r.miss("minCount", ""),
            count if count < 0 => r.bad("minCount", count, "must be greater than or equal to 1"),
            _ => {}
        }),
    });
    report.with(spec, "schedulingConstraints", |r, constraints| {
        let topology = list(constraints, "topology");
        if topology.len() > 1 {
            return r.at("topology", |r| r.too_many(topology.len(), 1));
        }
        r.each(constraints, "topology", |r, constraint| r.need_named(constraint, "key", names::qualified_name));
    });
    let claims = list(spec, "resourceClaims");
    if claims.len() > CLAIMS {
        report.at("resourceClaims", |r| r.too_many(claims.len(), CLAIMS));
    } else {
        report.items(spec, "resourceClaims", |r, index, claim| {
            if claims[..index].iter().any(|before| before["name"] == claim["name"]) {
                r.duplicate(claim);
            }
            r.need_named(claim, "name", names::dns_label);
            let why = match (has(claim, "resourceClaimName"), has(claim, "resourceClaimTemplateName")) {
                (false, false) => "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`",
                (true, true) => {
                    "exactly one of `resourceClaimName`, `resourceClaimTemplateName` is required, but multiple fields \
                     are set"
                }
                _ => "",
            };
            if !why.is_empty() {
                r.invalid("", why);
            }
            r.named(claim, "resourceClaimName", names::dns_subdomain);
            r.named(claim, "resourceClaimTemplateName", names::dns_subdomain);
        });
    }
    report.maybe_choice(spec, "disruptionMode", &["Pod", "PodGroup"]);
    report.named(spec, "priorityClassName", names::dns_subdomain);
}

/// What of a spec may not change: all that says how pods are scheduled.
pub fn update(report: &mut Report, new: &Value, old: &Value) {
    const FIXED: [&str; 8] = [
        "controllerRef",
        "podGroupTemplates",
        "podGroupTemplateRef",
        "schedulingPolicy",
        "schedulingConstraints",
        "resourceClaims",
        "disruptionMode",
        "priorityClassName",
    ];
    report.at("spec", |r| {
        for name in FIXED.iter().filter(|name| !same(&new["spec"][**name], &old["spec"][**name])) {
            r.bad(name, &new["spec"][*name], IMMUTABLE);
        }
    });
}

pub fn status(report: &mut Report, new: &Value) {
    report.at("status", |r| {
        meta::conditions(r, &new["status"]);
        r.each(&new["status"], "resourceClaimStatuses", |r, claim| {
            r.need_named(claim, "name", names::dns_label);
            r.named(claim, "resourceClaimName", names::dns_subdomain);
        });
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(check: fn(&mut Report, &Value), spec: Value) -> Vec<String> {
        Report::told(|r| check(r, &spec))
    }

    #[test]
    fn a_group_says_how_it_is_scheduled() {
        let of = |policy: Value| told(group, json!({"schedulingPolicy": policy}));
        assert_eq!(of(json!({"basic": {}})), [""; 0]);
        assert_eq!(of(json!({"gang": {"minCount": 2}})), [""; 0]);
        assert_eq!(of(json!({})), ["schedulingPolicy: Invalid value: \"\": must specify one of: `basic`, `gang`"]);
        assert_eq!(of(json!({"gang": {}})), ["schedulingPolicy.gang.minCount: Required value"]);
        let few = "schedulingPolicy.gang.minCount: Invalid value: -1: must be greater than or equal to 1";
        assert_eq!(of(json!({"gang": {"minCount": -1}})), [few]);
    }

    #[test]
    fn a_workload_has_templates_of_different_names() {
        let none = "podGroupTemplates: Required value: must have at least one item";
        assert_eq!(told(workload, json!({})), [none]);
        let template = json!({"name": "a", "schedulingPolicy": {"basic": {}}});
        assert_eq!(told(workload, json!({"podGroupTemplates": [template]})), [""; 0]);
        let twice = told(workload, json!({"podGroupTemplates": [template, template]}));
        assert!(twice[0].starts_with("podGroupTemplates[1]: Duplicate value: "), "{twice:?}");
        let many = told(workload, json!({"podGroupTemplates": vec![template; 9]}));
        assert_eq!(many, ["podGroupTemplates: Too many: 9: must have at most 8 items"]);
    }
}
