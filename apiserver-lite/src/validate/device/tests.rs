use serde_json::json;

use super::*;

fn of(plural: &str, spec: Value) -> Vec<String> {
    Report::told(|r| create(r, plural, &json!({"spec": spec})))
}

fn request(name: &str) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}})
}

#[test]
fn a_claim_that_names_what_it_asks_for_is_good() {
    let claim = json!({"devices": {
        "requests": [request("a"), {"name": "b", "firstAvailable": [
            {"name": "x", "deviceClassName": "gpu", "allocationMode": "All", "selectors": [
                {"cel": {"expression": "device.driver == 'gpu.example.com' && device.attributes['gpu.example.com'].size > 1"}}],
                "tolerations": [{"operator": "Exists"}]}]}],
        "constraints": [{"requests": ["a", "b/x"], "matchAttribute": "gpu.example.com/board"}],
        "config": [{"opaque": {"driver": "gpu.example.com", "parameters": {"a": 1}}}]}});
    assert_eq!(of("resourceclaims", claim), [""; 0]);
}

#[test]
fn a_claim_is_told_everything_that_is_wrong_with_it() {
    let claim = json!({"devices": {
        "requests": [request("a"), request("a"), {"name": "c"}, {"name": "d", "exactly": {
            "deviceClassName": "", "allocationMode": "Some", "selectors": [{}, {"cel": {"expression": "1"}}],
            "tolerations": [{"operator": "Equal", "value": "-"}]}}],
        "constraints": [{"requests": ["x"]}, {"matchAttribute": "board"}],
        "config": [{}, {"opaque": {"driver": "", "parameters": [1]}}]}});
    let told = of("resourceclaims", claim);
    let wanted = [
        "spec.devices.requests[2]: Required value: exactly one of `exactly` or `firstAvailable` is required",
        "spec.devices.requests[3].exactly.deviceClassName: Required value",
        "spec.devices.requests[3].exactly.selectors[0].cel: Required value",
        "spec.devices.requests[3].exactly.selectors[1].cel.expression: Invalid value: \"1\": must evaluate to bool or the \
         unknown type, not int",
        "spec.devices.requests[3].exactly.allocationMode: Unsupported value: \"Some\": supported values: \"All\", ",
        "spec.devices.requests[3].exactly.tolerations[0].value: Invalid value: \"-\": a valid label must be",
        "spec.devices.requests[1]: Duplicate value: \"a\"",
        "spec.devices.constraints[0].requests[0]: Invalid value: \"x\": must be the name of a request in the claim",
        "spec.devices.constraints[0]: Required value: exactly one of \"matchAttribute\" or \"distinctAttribute\"",
        "spec.devices.constraints[1].matchAttribute: Invalid value: \"board\": a fully qualified name must be",
        "spec.devices.config[0].opaque: Required value",
        "spec.devices.config[1].opaque.driver: Required value",
        "spec.devices.config[1].opaque.driver: Invalid value: \"\": a lowercase RFC 1123 subdomain must consist",
        "spec.devices.config[1].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object",
    ];
    assert_eq!(told.len(), wanted.len(), "{told:#?}");
    for (told, wanted) in told.iter().zip(wanted) {
        assert!(told.starts_with(wanted), "{told}");
    }
}

fn slice(devices: Value) -> Value {
    json!({"driver": "gpu.example.com", "pool": {"name": "a", "resourceSliceCount": 1}, "nodeName": "n", "devices": devices})
}

#[test]
fn a_slice_says_in_one_way_which_nodes_reach_it() {
    assert_eq!(of("resourceslices", slice(json!([{"name": "a"}]))), [""; 0]);
    let mut two = slice(json!([]));
    two["allNodes"] = true.into();
    assert_eq!(
        of("resourceslices", two),
        ["spec: Invalid value: \"{`nodeName`, `allNodes`}\": exactly one of `nodeName`, `nodeSelector`, `allNodes`, \
          `perDeviceNodeSelection` is required, but multiple fields are set"]
    );
    let mut none = slice(json!([{"name": "a", "nodeName": "n"}]));
    none["nodeName"].take();
    assert_eq!(of("resourceslices", none).len(), 2);
}

#[test]
fn attributes_have_one_value_and_names_of_their_form() {
    let told = of(
        "resourceslices",
        slice(json!([{"name": "a", "attributes": {
            "a/b/c": {"bool": true}, "no-id": {"int": 1}, "x": {}, "y": {"int": 1, "bool": true}, "z": {"version": "1"}}}])),
    );
    let paths: Vec<&str> = told.iter().filter_map(|text| text.split_once(": ").map(|(path, _)| path)).collect();
    assert_eq!(
        paths,
        [
            "spec.devices[0].attributes",
            "spec.devices[0].attributes",
            "spec.devices[0].attributes[x]",
            "spec.devices[0].attributes[y]",
            "spec.devices[0].attributes[z].version"
        ]
    );
}

#[test]
fn what_may_be_asked_of_a_shared_capacity_fits_into_it() {
    let capacity = |policy: Value| {
        let device = json!({"name": "a", "allowMultipleAllocations": true,
            "capacity": {"memory": {"value": "10Gi", "requestPolicy": policy}}});
        of("resourceslices", slice(json!([device])))
    };
    assert_eq!(capacity(json!({"default": "1Gi", "validValues": ["1Gi", "2Gi"]})), [""; 0]);
    assert_eq!(capacity(json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "1Gi"}})), [""; 0]);
    let path = "spec.devices[0].capacity[memory].requestPolicy";
    assert_eq!(
        capacity(json!({"default": "3Gi", "validValues": ["2Gi", "1Gi", "20Gi"]})),
        [
            format!("{path}.validValues[1]: Invalid value: \"1Gi\": values must be sorted in ascending order"),
            format!("{path}.validValues[2]: Invalid value: \"20Gi\": option is larger than capacity value: 10Gi"),
            format!(
                "{path}.validValues: Invalid value: \"3Gi\": default value is not valid according to the requestPolicy"
            ),
        ]
    );
    assert_eq!(
        capacity(json!({"validRange": {"min": "1"}})),
        [format!("{path}.default: Required value: required when validRange is defined")]
    );
    let plain = json!([{"name": "a", "capacity": {"memory": {"value": "1", "requestPolicy": {}}}}]);
    assert_eq!(
        of("resourceslices", slice(plain)),
        [format!("{path}: Forbidden: allowMultipleAllocations must be true")]
    );
}

#[test]
fn a_reservation_needs_an_allocation_that_then_stays() {
    let claim = |status: Value| json!({"spec": {"devices": {"requests": [request("a")]}}, "status": status});
    let user = json!({"resource": "pods", "name": "p", "uid": "u"});
    let result = json!({"request": "a", "driver": "gpu.example.com", "pool": "p", "device": "d"});
    let allocation = json!({"devices": {"results": [result]}});
    let check = |new: Value, old: Value| Report::told(|r| status(r, "resourceclaims", &claim(new), &claim(old)));
    let good = json!({"allocation": allocation, "reservedFor": [user]});
    assert_eq!(check(good.clone(), json!({})), [""; 0]);
    assert_eq!(
        check(json!({"reservedFor": [user, user]}), json!({})),
        [
            "status.reservedFor[1]: Duplicate value: \"u\"",
            "status.reservedFor: Forbidden: may not be specified when `allocated` is not set"
        ]
    );
    let mut other = good.clone();
    other["allocation"]["devices"]["results"][0]["device"] = "e".into();
    assert_eq!(check(other, good).len(), 1);
    let stranger = json!({"allocation": allocation, "devices": [
        {"driver": "gpu.example.com", "pool": "p", "device": "x", "networkData": {"ips": ["10.0.0.1"]}}]});
    assert_eq!(check(stranger, json!({})).len(), 2);
}

#[test]
fn lists_that_are_too_long_are_told_so_and_not_looked_at() {
    let claim = |status: Value| json!({"spec": {"devices": {"requests": [request("a")]}}, "status": status});
    let check = |new: Value| Report::told(|r| status(r, "resourceclaims", &claim(new), &claim(json!({}))));
    let many = Value::from(vec!["example.com/same"; 50_000]);
    let result = json!({"request": "a", "driver": "gpu.example.com", "pool": "p", "device": "d",
        "bindingConditions": many, "bindingFailureConditions": ["example.com/same"]});
    let path = "status.allocation.devices.results[0].binding";
    assert_eq!(
        check(json!({"allocation": {"devices": {"results": [result]}}})),
        [
            format!("{path}Conditions: Too many: 50000: must have at most 4 items"),
            format!(
                "{path}FailureConditions[0]: Invalid value: \"example.com/same\": bindingFailureConditions must not \
                 overlap with bindingConditions"
            ),
        ]
    );
    let result = json!({"request": "a", "driver": "gpu.example.com", "pool": "p", "device": "d"});
    let mut device = result.clone();
    device["conditions"] = vec![json!({"type": "Ready"}); 9].into();
    assert_eq!(
        check(json!({"allocation": {"devices": {"results": [result]}}, "devices": [device]})),
        ["status.devices[0].conditions: Too many: 9: must have at most 8 items"]
    );
}

#[test]
fn expressions_of_a_class_are_compiled_once() {
    let class =
        json!({"spec": {"selectors": [{"cel": {"expression": "device.nothing"}}], "extendedResourceName": "cpu"}});
    assert_eq!(Report::told(|r| create(r, "deviceclasses", &class)).len(), 2);
    let again = Report::told(|r| update(r, "deviceclasses", &class, &class));
    assert_eq!(again, ["spec.extendedResourceName: Invalid value: \"cpu\": must be a valid extended resource name"]);
}

#[test]
fn an_expression_that_may_cost_too_much_is_refused() {
    let told = |expression: &str| {
        let class = json!({"spec": {"selectors": [{"cel": {"expression": expression}}]}});
        Report::told(|r| create(r, "deviceclasses", &class))
    };
    let ten = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]";
    let deep = |depth: usize| {
        let loops: String = (0..depth).map(|i| format!("{ten}.all(x{i}, ")).collect();
        format!("{loops}x0 == x0{}", ")".repeat(depth))
    };
    assert!(told(&deep(3)).is_empty());
    assert_eq!(told(&deep(6)), ["spec.selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit"]);
    let known = r#"device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].model == "a100" &&
        device.capacity["gpu.example.com"].memory.compareTo(quantity("10Gi")) >= 0"#;
    assert!(told(known).is_empty(), "{:?}", told(known));
}
