//! resource.k8s.io/v1beta1 and the later versions: where a request says what it wants, and a slice what a device has.
//!
//! v1beta1 has a request's wishes beside its name, later versions under `exactly`; it has a device's attributes under
//! `basic`, later versions beside its name.

use serde_json::{Map, Value};

/// What moves between a request and its `exactly`.
const WISHES: [&str; 7] =
    ["deviceClassName", "selectors", "allocationMode", "count", "adminAccess", "tolerations", "capacity"];

type Edit = fn(&mut Map<String, Value>);

/// Calls `request` with each request of a claim or template, and `device` with each device of a slice.
fn each(value: &mut Value, request: Edit, device: Edit) {
    let places =
        [("/spec/devices/requests", request), ("/spec/spec/devices/requests", request), ("/spec/devices", device)];
    for (path, change) in places {
        let Some(Value::Array(items)) = value.pointer_mut(path) else { continue };
        items.iter_mut().filter_map(Value::as_object_mut).for_each(change);
    }
}

pub fn from_v1beta1(value: &mut Value) {
    let request = |request: &mut Map<String, Value>| {
        // An empty class name is written always, also beside alternatives.
        if request.get("deviceClassName").is_some_and(|n| n == "") {
            request.remove("deviceClassName");
        }
        let wishes: Map<String, Value> =
            WISHES.iter().filter_map(|w| Some(((*w).to_owned(), request.remove(*w)?))).collect();
        if !wishes.is_empty() {
            request.insert("exactly".into(), wishes.into());
        }
    };
    each(value, request, |device| {
        if let Some(Value::Object(basic)) = device.remove("basic") {
            device.extend(basic);
        }
    });
}

pub fn to_v1beta1(value: &mut Value) {
    let request = |request: &mut Map<String, Value>| {
        if let Some(Value::Object(wishes)) = request.remove("exactly") {
            request.extend(wishes);
        }
        request.entry("deviceClassName").or_insert_with(|| "".into());
    };
    each(value, request, |device| {
        let name = device.remove("name");
        let basic = std::mem::take(device);
        device.extend(name.map(|n| ("name".to_owned(), n)));
        device.insert("basic".into(), basic.into());
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn wishes_and_attributes_find_their_places() {
        let old = json!({"spec": {"devices": {"requests": [
            {"name": "a", "deviceClassName": "gpu", "count": 2},
            {"name": "b", "deviceClassName": "", "firstAvailable": [{"name": "x", "deviceClassName": "gpu"}]},
        ]}}});
        let mut value = old.clone();
        from_v1beta1(&mut value);
        assert_eq!(
            value["spec"]["devices"]["requests"][0],
            json!({"name": "a", "exactly": {"deviceClassName": "gpu", "count": 2}})
        );
        assert!(value["spec"]["devices"]["requests"][1].get("exactly").is_none());
        to_v1beta1(&mut value);
        assert_eq!(value, old);
        let old = json!({"spec": {"devices": [{"name": "d", "basic": {"attributes": {"a": {"int": 1}}}}]}});
        let mut value = old.clone();
        from_v1beta1(&mut value);
        assert_eq!(value["spec"]["devices"][0], json!({"name": "d", "attributes": {"a": {"int": 1}}}));
        to_v1beta1(&mut value);
        assert_eq!(value, old);
    }
}
