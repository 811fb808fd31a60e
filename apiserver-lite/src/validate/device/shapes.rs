//! What upstream calls the fields of claims and of what is allocated for them: its types for them have no names in JSON,
//! and a complaint about a changed claim shows all of it.

use serde_json::Value;

use super::super::shapes::{NODE_SELECTOR, TOLERATION};
use crate::field_error::{Raw, escaped};
use crate::go_value::{Field, Shape, shown};

const TEXT: Shape = Shape::Pointer(&Shape::Text);
const FLAG: Shape = Shape::Pointer(&Shape::Flag);
const TEXTS: Shape = Shape::List(&Shape::Text);

const EXPRESSION: Shape = Shape::Struct(&[Field("Expression", "expression", Shape::Text)]);
const SELECTORS: Shape = Shape::List(&Shape::Struct(&[Field("CEL", "cel", Shape::Pointer(&EXPRESSION))]));
const TOLERATIONS: Shape = Shape::List(&TOLERATION);
const AMOUNTS: Shape = Shape::Pointer(&Shape::Struct(&[Field("Requests", "requests", Shape::Any)]));
const EXACTLY: Shape = Shape::Struct(&[
    Field("DeviceClassName", "deviceClassName", Shape::Text),
    Field("Selectors", "selectors", SELECTORS),
    Field("AllocationMode", "allocationMode", Shape::Text),
    Field("Count", "count", Shape::Number),
    Field("AdminAccess", "adminAccess", FLAG),
    Field("Tolerations", "tolerations", TOLERATIONS),
    Field("Capacity", "capacity", AMOUNTS),
]);
const CHOICE: Shape = Shape::Struct(&[
    Field("Name", "name", Shape::Text),
    Field("DeviceClassName", "deviceClassName", Shape::Text),
    Field("Selectors", "selectors", SELECTORS),
    Field("AllocationMode", "allocationMode", Shape::Text),
    Field("Count", "count", Shape::Number),
    Field("Tolerations", "tolerations", TOLERATIONS),
    Field("Capacity", "capacity", AMOUNTS),
]);
const REQUEST: Shape = Shape::Struct(&[
    Field("Name", "name", Shape::Text),
    Field("Exactly", "exactly", Shape::Pointer(&EXACTLY)),
    Field("FirstAvailable", "firstAvailable", Shape::List(&CHOICE)),
]);
const CONSTRAINT: Shape = Shape::Struct(&[
    Field("Requests", "requests", TEXTS),
    Field("MatchAttribute", "matchAttribute", TEXT),
    Field("DistinctAttribute", "distinctAttribute", TEXT),
]);
const OPAQUE: Shape = Shape::Pointer(&Shape::Struct(&[
    Field("Driver", "driver", Shape::Text),
    Field("Parameters", "parameters", Shape::Any),
]));
const CONFIGURATION: Shape = Shape::Struct(&[Field("Requests", "requests", TEXTS), Field("Opaque", "opaque", OPAQUE)]);
const DEVICES: Shape = Shape::Struct(&[
    Field("Requests", "requests", Shape::List(&REQUEST)),
    Field("Constraints", "constraints", Shape::List(&CONSTRAINT)),
    Field("Config", "config", Shape::List(&CONFIGURATION)),
]);
/// What is wanted of a claim.
pub const CLAIM: Shape = Shape::Struct(&[Field("Devices", "devices", DEVICES)]);

const RESULT: Shape = Shape::Struct(&[
    Field("Request", "request", Shape::Text),
    Field("Driver", "driver", Shape::Text),
    Field("Pool", "pool", Shape::Text),
    Field("Device", "device", Shape::Text),
    Field("AdminAccess", "adminAccess", FLAG),
    Field("Tolerations", "tolerations", TOLERATIONS),
    Field("BindingConditions", "bindingConditions", TEXTS),
    Field("BindingFailureConditions", "bindingFailureConditions", TEXTS),
    Field("ShareID", "shareID", TEXT),
    Field("ConsumedCapacity", "consumedCapacity", Shape::Any),
]);
const RESULT_CONFIGURATION: Shape = Shape::Struct(&[
    Field("Source", "source", Shape::Text),
    Field("Requests", "requests", TEXTS),
    Field("Opaque", "opaque", OPAQUE),
]);
const RESULTS: Shape = Shape::Struct(&[
    Field("Results", "results", Shape::List(&RESULT)),
    Field("Config", "config", Shape::List(&RESULT_CONFIGURATION)),
]);
/// What was allocated for a claim.
pub const ALLOCATION: Shape = Shape::Pointer(&Shape::Struct(&[
    Field("Devices", "devices", RESULTS),
    Field("NodeSelector", "nodeSelector", Shape::Pointer(&NODE_SELECTOR)),
    Field("AllocationTimestamp", "allocationTimestamp", TEXT),
]));

/// A template for claims: the metadata of the claims, which has names in JSON, and what is wanted of them.
pub fn template(spec: &Value) -> Raw {
    const METADATA: [&str; 4] = ["labels", "annotations", "ownerReferences", "finalizers"];
    let metadata: String = METADATA
        .iter()
        .filter_map(|name| Some((name, spec["metadata"].get(*name).filter(|value| !value.is_null())?)))
        .map(|(name, value)| format!("\"{name}\":{value},"))
        .collect();
    Raw(escaped(format!("{{{metadata}\"Spec\":{}}}", shown(&spec["spec"], &CLAIM).0)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_shown_in_the_words_of_its_go_type() {
        let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1});
        let spec = json!({"devices": {"requests": [{"name": "a", "exactly": exactly}],
            "config": [{"requests": ["a"], "opaque": {"driver": "d", "parameters": {"x": 1}}}]}});
        let claim = r#"{"Devices":{"Requests":[{"Name":"a","Exactly":{"DeviceClassName":"gpu","Selectors":null,"#
            .to_owned()
            + r#""AllocationMode":"ExactCount","Count":1,"AdminAccess":null,"Tolerations":null,"Capacity":null},"#
            + r#""FirstAvailable":null}],"Constraints":null,"Config":[{"Requests":["a"],"Opaque":{"Driver":"d","#
            + r#""Parameters":{"x":1}}}]}}"#;
        assert_eq!(shown(&spec, &CLAIM).0, claim);
        let labelled = template(&json!({"metadata": {"labels": {"l": "v"}}, "spec": spec})).0;
        assert_eq!(labelled, format!(r#"{{"labels":{{"l":"v"}},"Spec":{claim}}}"#));
        assert_eq!(shown(&Value::Null, &ALLOCATION).0, "null");
    }
}
