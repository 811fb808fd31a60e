//! Applies and updates of whole objects, as their clients see them.

use serde_json::{Value, json};

use super::{Writer, apply, created, keep_times, updated};
use crate::resource::{Resource, Resources};
use crate::status::ApiError;
use std::sync::Arc;

fn resource(group: &str, version: &str, plural: &str) -> Arc<Resource> {
    Resources::built_in().lookup(group, version, plural).expect("a built-in resource")
}

fn config_maps() -> Arc<Resource> {
    resource("", "v1", "configmaps")
}

fn config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data})
}

/// One manager applies to what is there; the live object is replaced by the result.
fn applied(live: &mut Option<Value>, manager: &str, config: &Value, force: bool) -> Result<(), ApiError> {
    let resource = config_maps();
    let writer = Writer { resource: &resource, subresource: "", manager };
    *live = Some(apply(writer, live.as_ref(), config, force)?);
    Ok(())
}

/// `manager operation fields` of every entry.
fn owners(value: &Value) -> Vec<String> {
    let entries = value["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let text = |e: &Value, key: &str| e[key].as_str().unwrap_or_default().to_owned();
    entries.iter().map(|e| format!("{} {} {}", text(e, "manager"), text(e, "operation"), e["fieldsV1"])).collect()
}

#[test]
fn a_value_goes_when_its_last_owner_no_longer_applies_it() {
    let mut live = None;
    applied(&mut live, "ann", &config_map(json!({"k": "v", "n": "1"})), false).expect("nobody else is there");
    applied(&mut live, "bob", &config_map(json!({"n": "1"})), false).expect("an equal value is no conflict");
    applied(&mut live, "ann", &config_map(json!({"k": "v"})), false).expect("giving up is no conflict");
    let object = live.as_ref().expect("applied");
    assert_eq!(object["data"], json!({"k": "v", "n": "1"}), "bob still owns it");
    applied(&mut live, "bob", &config_map(json!({})), false).expect("giving up is no conflict");
    let object = live.expect("applied");
    assert_eq!(object["data"], json!({"k": "v"}));
    assert_eq!(owners(&object), [r#"ann Apply {"f:data":{"f:k":{}}}"#, r#"bob Apply {"f:data":{}}"#]);
}

#[test]
fn fields_of_others_are_conflicts_until_forced() {
    let mut live = None;
    applied(&mut live, "ann", &config_map(json!({"k": "v", "n": "1"})), false).expect("nobody else is there");
    let wanted = config_map(json!({"k": "other", "n": "2"}));
    let refused = applied(&mut live, "bob", &wanted, false).expect_err("ann owns both");
    assert_eq!(refused.code(), 409);
    assert_eq!(
        refused.status().message,
        "Apply failed with 2 conflicts: conflicts with \"ann\":\n- .data.k\n- .data.n"
    );
    let causes = refused.status().details.as_ref().map(|d| d.causes.clone()).unwrap_or_default();
    assert_eq!(causes[0].field, ".data.k");
    assert_eq!(causes[0].message, "conflict with \"ann\"");
    applied(&mut live, "bob", &wanted, true).expect("forced");
    let object = live.expect("applied");
    assert_eq!(object["data"], json!({"k": "other", "n": "2"}));
    assert_eq!(owners(&object), [r#"bob Apply {"f:data":{"f:k":{},"f:n":{}}}"#]);
}

#[test]
fn what_was_there_before_the_first_apply_has_an_owner_of_its_own() {
    let mut live = Some(config_map(json!({"k": "v"})));
    let refused = applied(&mut live, "ann", &config_map(json!({"k": "w"})), false).expect_err("somebody set it");
    let text = "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.k";
    assert_eq!(refused.status().message, text);
    applied(&mut live, "ann", &config_map(json!({"k": "v"})), false).expect("an equal value is no conflict");
    let owned = r#"{"f:data":{".":{},"f:k":{}}}"#;
    let object = live.expect("applied");
    assert_eq!(owners(&object), [r#"ann Apply {"f:data":{"f:k":{}}}"#, &format!("before-first-apply Update {owned}")]);
}

#[test]
fn what_kubectl_applied_on_its_own_side_is_its_own() {
    let before = config_map(json!({"k": "v", "n": "1"}));
    let mut object = before.clone();
    object["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/last-applied-configuration": before.to_string()});
    let resource = config_maps();
    created(Writer { resource: &resource, subresource: "", manager: "kubectl-client-side-apply" }, &mut object);
    let mut live = Some(object.clone());
    let wanted = config_map(json!({"k": "w", "n": "1"}));
    applied(&mut live, "kubectl", &wanted, false).expect("its own fields");
    let changed = live.expect("applied");
    assert_eq!(changed["data"]["k"], "w");
    let annotation = &changed["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"];
    assert_eq!(annotation.as_str(), Some(format!("{wanted}\n").as_str()));
    // Under another name there is nothing to take over, nor where somebody changed the field since.
    let mut live = Some(object.clone());
    assert!(applied(&mut live, "ann", &wanted, false).is_err());
    object["data"]["k"] = "x".into();
    let mut live = Some(object);
    assert!(applied(&mut live, "kubectl", &wanted, false).is_err());
}

#[test]
fn nonsense_is_refused_in_upstreams_words() {
    for (config, code, text) in [
        (json!({"apiVersion": "v1", "kind": "Secret"}), 400, "invalid object type: /v1, Kind=Secret"),
        (json!({"kind": "ConfigMap"}), 400, "invalid object type: /, Kind=ConfigMap"),
        (
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"managedFields": []}}),
            400,
            "metadata.managedFields must be nil",
        ),
        (
            config_map(json!({"k": 1})),
            500,
            "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .data.k: \
            expected string, got &value.valueUnstructured{Value:1}",
        ),
    ] {
        let refused = applied(&mut None, "ann", &config, false).expect_err(text);
        assert_eq!((refused.code(), refused.status().message.as_str()), (code, text));
    }
}

#[test]
fn an_update_takes_the_fields_that_it_changes() {
    let resource = config_maps();
    let writer = |manager| Writer { resource: &resource, subresource: "", manager };
    let mut object = config_map(json!({"k": "v", "n": "1", "z": "9"}));
    created(writer("ann"), &mut object);
    let mut next = object.clone();
    next["data"] = json!({"k": "w", "n": "1"});
    updated(writer("bob"), &object, &mut next);
    assert_eq!(owners(&next), [r#"ann Update {"f:data":{".":{},"f:n":{}}}"#, r#"bob Update {"f:data":{"f:k":{}}}"#]);
}

#[test]
fn clients_may_forget_owners_and_cannot_break_them() {
    let resource = config_maps();
    let writer = Writer { resource: &resource, subresource: "", manager: "ann" };
    let mut object = config_map(json!({"k": "v"}));
    created(writer, &mut object);
    for (said, kept) in
        [(json!([{}]), false), (json!([]), false), (json!([{"operation": "x"}]), true), (Value::Null, true)]
    {
        let mut next = object.clone();
        next["metadata"]["managedFields"] = said.clone();
        updated(writer, &object, &mut next);
        assert_eq!(next["metadata"].get("managedFields").is_some(), kept, "{said}");
    }
}

#[test]
fn the_status_endpoint_owns_status_and_the_object_itself_does_not() {
    let resource = resource("apps", "v1", "deployments");
    let writer = |subresource| Writer { resource: &resource, subresource, manager: "ann" };
    let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"replicas": 1}, "status": {"replicas": 1}});
    created(writer(""), &mut object);
    assert_eq!(owners(&object), [r#"ann Update {"f:spec":{"f:replicas":{}}}"#]);
    let mut next = object.clone();
    next["spec"]["replicas"] = 2.into();
    next["status"]["replicas"] = 2.into();
    updated(writer("status"), &object, &mut next);
    let entry = &next["metadata"]["managedFields"][1];
    assert_eq!(
        (&entry["subresource"], &entry["fieldsV1"]),
        (&json!("status"), &json!({"f:status": {"f:replicas": {}}}))
    );
    assert_eq!(next["metadata"]["managedFields"][0]["fieldsV1"], json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn owners_in_another_version_lose_what_is_changed_in_this_one() {
    let old = resource("autoscaling", "v1", "horizontalpodautoscalers");
    let new = resource("autoscaling", "v2", "horizontalpodautoscalers");
    let stored = |cpu: i64| {
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": cpu}}}]}})
    };
    let mut object = stored(50);
    created(Writer { resource: &old, subresource: "", manager: "ann" }, &mut object);
    let mine = r#"{"f:spec":{"f:maxReplicas":{},"f:targetCPUUtilizationPercentage":{}}}"#;
    assert_eq!(owners(&object), [format!("ann Update {mine}")]);
    let mut next = stored(80);
    updated(Writer { resource: &new, subresource: "", manager: "bob" }, &object, &mut next);
    assert_eq!(
        owners(&next),
        [r#"ann Update {"f:spec":{"f:maxReplicas":{}}}"#, r#"bob Update {"f:spec":{"f:metrics":{}}}"#]
    );
}

#[test]
fn new_times_alone_are_no_change() {
    let resource = config_maps();
    let mut old = config_map(json!({"k": "v"}));
    created(Writer { resource: &resource, subresource: "", manager: "ann" }, &mut old);
    old["metadata"]["resourceVersion"] = "7".into();
    let mut same = old.clone();
    same["metadata"]["managedFields"][0]["time"] = "2000-01-01T00:00:00Z".into();
    let mut other = same.clone();
    other["data"]["k"] = "w".into();
    keep_times(&resource, &mut same, &old);
    assert_eq!(same["metadata"]["managedFields"], old["metadata"]["managedFields"]);
    keep_times(&resource, &mut other, &old);
    assert_eq!(other["metadata"]["managedFields"][0]["time"], "2000-01-01T00:00:00Z");
}

/// A kind as a CustomResourceDefinition makes it: `spec` with a text, a keyed list, a set and a map that may hold anything.
fn widgets() -> Resource {
    widgets_with([proto::schema::ListKind::Map, proto::schema::ListKind::Set], false)
}

/// The same with other kinds of lists and of labels.
fn widgets_with([parts, tags]: [proto::schema::ListKind; 2], atomic: bool) -> Resource {
    use crate::resource::{Schema, SchemaSet};
    use proto::schema::{ListType, MapType, Prop, Struct, Type, TypeSet};
    let list = |element, kind, keys: &[&str]| {
        Type::List(ListType { element, kind, keys: keys.iter().map(|k| (*k).into()).collect(), wrapped: false })
    };
    let prop = |name: &str, ty| Prop {
        name: name.into(),
        ty,
        pointer: true,
        always: false,
        omit_zero: false,
        required: false,
        immutable: false,
        extra: None,
    };
    let shape = |name: &str, props: Vec<Prop>| {
        let mut shape = Struct::default();
        shape.name = name.into();
        shape.props = props;
        shape.index();
        shape
    };
    let types = vec![
        Type::String,
        Type::Double,
        Type::Struct(3),
        list(2, parts, &["name"]),
        list(0, tags, &[]),
        Type::Json,
        Type::Struct(1),
        Type::Struct(2),
        Type::Map(MapType { value: 0, atomic }),
    ];
    let structs = vec![
        shape("Widget", vec![prop("apiVersion", 0), prop("kind", 0), prop("metadata", 6), prop("spec", 7)]),
        shape("ObjectMeta", vec![prop("name", 0), prop("namespace", 0), prop("labels", 8)]),
        shape("Spec", vec![prop("color", 0), prop("parts", 3), prop("tags", 4), prop("anything", 5)]),
        shape("Part", vec![prop("name", 0), prop("weight", 1)]),
    ];
    let set = TypeSet { types, structs, kinds: Vec::new(), custom: true };
    let schema = Schema { set: SchemaSet::Custom(Arc::new(set)), id: 0 };
    Resource {
        group: "example.com".into(),
        version: "v1".into(),
        plural: "widgets".into(),
        singular: "widget".into(),
        kind: "Widget".into(),
        list_kind: "WidgetList".into(),
        namespaced: true,
        short_names: Vec::new(),
        categories: Vec::new(),
        verbs: crate::resource::Verbs::default(),
        subresources: Vec::new(),
        schema: schema.clone(),
        storage: "widgets.example.com".into(),
        storage_version: "example.com/v1".into(),
        stored: schema,
        custom: true,
        definition: None,
        defaults: crate::resource::Defaults::default(),
    }
}

#[test]
fn custom_objects_follow_their_own_schema() {
    let resource = widgets();
    let writer = |manager| Writer { resource: &resource, subresource: "", manager };
    let widget = |spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec});
    let first = widget(json!({"color": "green", "parts": [{"name": "x"}], "tags": ["t1"],
        "anything": {"deep": {"a": 1, "b": [1]}}}));
    let live = apply(writer("ann"), None, &first, false).expect("nobody else is there");
    let second = widget(json!({"parts": [{"name": "y", "weight": 2}], "tags": ["t2"], "anything": {"deep": {"c": 1}}}));
    let live = apply(writer("bob"), Some(&live), &second, false).expect("other items and keys");
    assert_eq!(
        live["spec"],
        json!({"color": "green", "parts": [{"name": "x"}, {"name": "y", "weight": 2}],
        "tags": ["t1", "t2"], "anything": {"deep": {"a": 1, "b": [1], "c": 1}}})
    );
    let refused = apply(writer("bob"), Some(&live), &widget(json!({"anything": {"deep": {"b": [2]}}})), false);
    let text = "Apply failed with 1 conflict: conflict with \"ann\": .spec.anything.deep.b";
    assert_eq!(refused.expect_err("a list is one value").status().message, text);
    let live = apply(writer("bob"), Some(&live), &widget(json!({"tags": ["t2"]})), false).expect("gives up items");
    assert_eq!(
        live["spec"],
        first["spec"]
            .as_object()
            .map(|s| {
                let mut spec = s.clone();
                spec["tags"] = json!(["t1", "t2"]);
                Value::Object(spec)
            })
            .unwrap_or_default()
    );
    let unknown = apply(writer("bob"), Some(&live), &widget(json!({"nope": 1})), false).expect_err("not declared");
    let text = "failed to create typed patch object (/w; example.com/v1, Kind=Widget): .spec.nope: field not declared in schema";
    assert_eq!((unknown.code(), unknown.status().message.as_str()), (500, text));
}

/// Owners of parts of what became one value kept them, and nobody owned the value.
#[test]
fn who_owned_parts_of_what_is_one_value_by_now_owns_it() {
    let writer = |resource, manager| Writer { resource, subresource: "", manager };
    let widget = |spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "labels": {"a": "b"}}, "spec": spec});
    let spec = json!({"color": "green", "parts": [{"name": "x", "weight": 1}], "tags": ["t1"]});
    let then = widgets();
    let live = apply(writer(&then, "ann"), None, &widget(spec), false).expect("nobody else is there");
    let now = widgets_with([proto::schema::ListKind::Atomic; 2], true);
    let bob = writer(&now, "bob");
    let other = widget(json!({"parts": [{"name": "y"}], "tags": ["t2"]}));
    let refused = apply(bob, Some(&live), &other, false).expect_err("ann owns the lists");
    let text = "Apply failed with 2 conflicts: conflicts with \"ann\":\n- .spec.parts\n- .spec.tags";
    assert_eq!(refused.status().message, text);
    let live = apply(bob, Some(&live), &widget(json!({"tags": ["t1"]})), false).expect("an equal value");
    let ann = r#"{"f:metadata":{"f:labels":{}},"f:spec":{"f:color":{},"f:parts":{},"f:tags":{}}}"#;
    let bob = r#"{"f:metadata":{"f:labels":{}},"f:spec":{"f:tags":{}}}"#;
    let mut all = owners(&live);
    all.sort();
    assert_eq!(all, [format!("ann Apply {ann}"), format!("bob Apply {bob}")]);
    // The other way round they own what they owned.
    let live = apply(writer(&then, "eve"), Some(&live), &widget(json!({"color": "green"})), false).expect("equal");
    assert!(owners(&live).contains(&format!("ann Apply {ann}")), "{:?}", owners(&live));
}

#[test]
fn long_lists_are_merged_in_reasonable_time() {
    let resource = resource("", "v1", "pods");
    let pod = |from: usize, to: usize| {
        let names: Vec<Value> = (from..to).map(|i| json!({"name": format!("c{i}"), "image": "i"})).collect();
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": names}})
    };
    let writer = Writer { resource: &resource, subresource: "", manager: "ann" };
    let live = apply(writer, None, &pod(0, 4000), false).expect("nobody else is there");
    let start = std::time::Instant::now();
    let merged = apply(writer, Some(&live), &pod(2000, 6000), false).expect("its own fields");
    assert_eq!(merged["spec"]["containers"].as_array().map(Vec::len), Some(4000));
    assert_eq!(merged["spec"]["containers"][0]["name"], "c2000");
    // Comparing each item with each takes minutes here.
    assert!(start.elapsed() < std::time::Duration::from_secs(30), "{:?}", start.elapsed());
}

/// A plain update left them their parts, beside which the writer came to own the whole.
#[test]
fn an_update_as_well_finds_who_owned_parts_of_what_is_one_value_by_now() {
    let writer = |resource, manager| Writer { resource, subresource: "", manager };
    let widget = |spec: Value| json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": spec});
    let then = widgets();
    let spec = json!({"color": "green", "parts": [{"name": "x", "weight": 1}], "tags": ["t1"]});
    let live = apply(writer(&then, "ann"), None, &widget(spec), false).expect("nobody else is there");
    let now = widgets_with([proto::schema::ListKind::Atomic; 2], true);
    let mut new = live.clone();
    new["spec"]["parts"][0]["weight"] = json!(2);
    updated(writer(&now, "bob"), &live, &mut new);
    let mut all = owners(&new);
    all.sort();
    let ann = r#"ann Apply {"f:spec":{"f:color":{},"f:tags":{}}}"#;
    assert_eq!(all, [ann, r#"bob Update {"f:spec":{"f:parts":{}}}"#]);
    // What has parts by now is owned as it was.
    let mut back = new.clone();
    back["spec"]["color"] = json!("red");
    updated(writer(&then, "eve"), &new, &mut back);
    assert!(owners(&back).contains(&r#"bob Update {"f:spec":{"f:parts":{}}}"#.to_owned()), "{:?}", owners(&back));
}
