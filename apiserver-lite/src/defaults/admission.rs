//! Webhooks and policies that decide about requests.

use serde_json::Value;

use super::{Object, below, each, inside, made, set_absent, set_unsaid};

pub(super) fn apply(plural: &str, object: &mut Object) {
    match plural {
        "validatingwebhookconfigurations" => each(object, "webhooks").for_each(webhook),
        "mutatingwebhookconfigurations" => {
            for hook in each(object, "webhooks") {
                webhook(hook);
                set_unsaid(hook, "reinvocationPolicy", "Never");
            }
        }
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
            let Some(spec) = made(object, "spec") else { return };
            set_unsaid(spec, "failurePolicy", "Fail");
            if let Some(matching) = inside(spec, "matchConstraints") {
                matches(matching);
            }
        }
        "validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings" => {
            if let Some(matching) = below(object, &["spec", "matchResources"]) {
                matches(matching);
            }
        }
        _ => {}
    }
}

fn webhook(hook: &mut Object) {
    if let Some(service) = below(hook, &["clientConfig", "service"]) {
        set_absent(service, "port", 443);
    }
    set_unsaid(hook, "failurePolicy", "Fail");
    set_unsaid(hook, "matchPolicy", "Equivalent");
    made(hook, "namespaceSelector");
    made(hook, "objectSelector");
    if hook.get("timeoutSeconds").is_none_or(Value::is_null) {
        hook.insert("timeoutSeconds".into(), 10.into());
    }
    each(hook, "rules").for_each(|rule| set_unsaid(rule, "scope", "*"));
}

fn matches(matching: &mut Object) {
    set_unsaid(matching, "matchPolicy", "Equivalent");
    made(matching, "namespaceSelector");
    made(matching, "objectSelector");
    for rules in ["resourceRules", "excludeResourceRules"] {
        each(matching, rules).for_each(|rule| set_unsaid(rule, "scope", "*"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_webhook_is_asked_about_everything_for_ten_seconds() {
        let mut value =
            json!({"webhooks": [{"rules": [{}], "clientConfig": {"service": {}}, "timeoutSeconds": 3}, {}]});
        apply("mutatingwebhookconfigurations", value.as_object_mut().unwrap());
        let expected = json!({"rules": [{"scope": "*"}], "clientConfig": {"service": {"port": 443}}, "timeoutSeconds": 3,
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
            "reinvocationPolicy": "Never"});
        assert_eq!(value["webhooks"][0], expected);
        let mut zero = json!({"webhooks": [{"clientConfig": {"service": {"port": 0}}}]});
        apply("mutatingwebhookconfigurations", zero.as_object_mut().unwrap());
        assert_eq!(zero["webhooks"][0]["clientConfig"]["service"]["port"], 0, "a zero is said, and refused later");
        assert_eq!(value["webhooks"][1]["timeoutSeconds"], 10);
    }
}
