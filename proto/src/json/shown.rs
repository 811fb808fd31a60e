//! What [`super::write`] writes for one property, without writing it: comparisons of trees need to know that an absent
//! struct and an empty one are the same.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::write::{has_struct_value, is_left_out, reads_back_as_null};
use crate::schema::{Prop, Type, TypeSet};

/// The value that stands in the JSON for a property whose tree holds `value`; None when the property is left out.
pub fn shown<'a>(set: &'a TypeSet, prop: &'a Prop, value: Option<&'a Value>) -> Option<&'a Value> {
    match value {
        Some(value) if set.is_custom() => Some(value),
        Some(value) if reads_back_as_null(set, prop, value) => Some(&Value::Null),
        Some(value) if !value.is_null() => Some(value).filter(|v| !is_left_out(set, prop, v)),
        _ if prop.always && prop.pointer => Some(&Value::Null),
        _ if prop.always || has_struct_value(set, prop) => Some(zero(set.ty(prop.ty))),
        _ => None,
    }
}

/// Zeros of each type, to be borrowed.
struct Zeros {
    text: Value,
    truth: Value,
    number: Value,
    object: Value,
    quantity: Value,
    duration: Value,
}

static ZEROS: LazyLock<Zeros> = LazyLock::new(|| Zeros {
    text: Value::String(String::new()),
    truth: Value::Bool(false),
    number: 0.into(),
    object: Value::Object(Map::new()),
    quantity: "0".into(),
    duration: "0s".into(),
});

fn zero(ty: &Type) -> &'static Value {
    match ty {
        Type::String => &ZEROS.text,
        Type::Bool => &ZEROS.truth,
        Type::Int32 | Type::Int64 | Type::Double | Type::IntOrString => &ZEROS.number,
        Type::Quantity => &ZEROS.quantity,
        Type::Duration => &ZEROS.duration,
        Type::Struct(_) | Type::AtomicStruct(_) => &ZEROS.object,
        _ => &Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_struct_shows_as_an_empty_one_and_an_absent_text_not_at_all() {
        let set = TypeSet::built_in();
        let spec = set.get(set.struct_named("k8s.io.api.apps.v1.DeploymentSpec").expect("built in"));
        let (_, strategy) = spec.prop("strategy").expect("deployments have a strategy");
        assert_eq!(shown(set, strategy, None), Some(&Value::Object(Map::new())));
        let (_, paused) = spec.prop("paused").expect("deployments can be paused");
        assert_eq!(shown(set, paused, None), None);
        assert_eq!(shown(set, paused, Some(&Value::Bool(false))), None);
        let role = set.get(set.struct_named("k8s.io.api.rbac.v1.Role").expect("built in"));
        let (_, rules) = role.prop("rules").expect("roles have rules");
        assert_eq!(shown(set, rules, None), Some(&Value::Null));
        assert_eq!(shown(set, rules, Some(&Value::Array(Vec::new()))), Some(&Value::Null));
    }
}
