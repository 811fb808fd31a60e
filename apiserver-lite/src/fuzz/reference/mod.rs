//! Patches and applies against models of them: small, slow and plain ones that share nothing with the code they judge.
//!
//! The shapes below say once more, by hand, how fields of a few kinds are patched and owned. Objects, patches and
//! configurations are made up from them.

mod applied;
mod strategic;

use serde_json::{Map, Value, json};

use super::Random;
use crate::resource::Resources;

/// How a field is patched (strategic merge) and owned (server-side apply).
#[derive(Debug)]
pub enum Shape {
    Text,
    Number,
    /// A list that is one value.
    Words,
    /// A list that is merged, and owned, by value.
    Values,
    /// A map that is merged, and owned key by key.
    Labels,
    /// A map that is merged by patches, but has one owner.
    Selector,
    /// Items that are merged by the first of their keys, and found by all of them; those of nothing but keys have one
    /// owner.
    Items(&'static [(&'static str, Shape)], Fields),
    Struct(Fields),
    /// A struct that is merged by patches, but has one owner.
    Whole(Fields),
}

type Fields = &'static [(&'static str, Shape)];

/// A kind, where it is served, and its fields.
pub struct Kind {
    pub group: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub fields: Fields,
}

impl Kind {
    fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".into() } else { format!("{}/v1", self.group) }
    }

    fn resource(&self) -> std::sync::Arc<crate::resource::Resource> {
        Resources::built_in().lookup(self.group, "v1", self.plural).expect("is served")
    }

    /// An object of the kind with these fields, as decoding has it.
    fn object(&self, fields: Map<String, Value>) -> Value {
        let mut object = Value::Object(fields);
        object["apiVersion"] = self.api_version().into();
        object["kind"] = self.kind.into();
        object["metadata"]["name"] = "a".into();
        self.normal(object)
    }

    fn normal(&self, object: Value) -> Value {
        let resource = self.resource();
        let decoded = proto::json::conform(resource.schema.set(), resource.schema.id, &object);
        decoded.unwrap_or_else(|e| panic!("{e}: {object}")).value
    }
}

const NAME: (&str, Shape) = ("name", Shape::Text);

const METADATA: (&str, Shape) = (
    "metadata",
    Shape::Struct(&[
        ("annotations", Shape::Labels),
        ("finalizers", Shape::Values),
        ("generateName", Shape::Text),
        ("labels", Shape::Labels),
    ]),
);

const CONTAINERS: Shape = Shape::Items(
    &[NAME],
    &[
        ("args", Shape::Words),
        ("env", Shape::Items(&[NAME], &[("value", Shape::Text)])),
        ("image", Shape::Text),
        (
            "ports",
            Shape::Items(
                &[("containerPort", Shape::Number), ("protocol", Shape::Text)],
                &[("hostIP", Shape::Text), ("hostPort", Shape::Number), NAME],
            ),
        ),
        ("resources", Shape::Struct(&[("limits", Shape::Labels)])),
        ("volumeMounts", Shape::Items(&[("mountPath", Shape::Text)], &[("subPath", Shape::Text)])),
        ("workingDir", Shape::Text),
    ],
);

const POD: Fields = &[
    ("containers", CONTAINERS),
    ("dnsConfig", Shape::Struct(&[("nameservers", Shape::Words), ("searches", Shape::Words)])),
    ("hostAliases", Shape::Items(&[("ip", Shape::Text)], &[("hostnames", Shape::Words)])),
    ("hostname", Shape::Text),
    ("imagePullSecrets", Shape::Items(&[NAME], &[])),
    ("nodeSelector", Shape::Selector),
    ("priority", Shape::Number),
    (
        "volumes",
        Shape::Items(
            &[NAME],
            &[
                ("configMap", Shape::Struct(&[("defaultMode", Shape::Number)])),
                ("emptyDir", Shape::Struct(&[("medium", Shape::Text)])),
                ("secret", Shape::Struct(&[("defaultMode", Shape::Number), ("secretName", Shape::Text)])),
            ],
        ),
    ),
];

const KINDS: [Kind; 6] = [
    Kind { group: "", plural: "pods", kind: "Pod", fields: &[METADATA, ("spec", Shape::Struct(POD))] },
    Kind {
        group: "apps",
        plural: "deployments",
        kind: "Deployment",
        fields: &[
            METADATA,
            (
                "spec",
                Shape::Struct(&[
                    ("minReadySeconds", Shape::Number),
                    ("replicas", Shape::Number),
                    ("strategy", Shape::Struct(&[("type", Shape::Text)])),
                    (
                        "template",
                        Shape::Struct(&[
                            ("metadata", Shape::Struct(&[("labels", Shape::Labels)])),
                            ("spec", Shape::Struct(POD)),
                        ]),
                    ),
                ]),
            ),
        ],
    },
    Kind {
        group: "",
        plural: "services",
        kind: "Service",
        fields: &[
            METADATA,
            (
                "spec",
                Shape::Struct(&[
                    ("externalIPs", Shape::Words),
                    ("externalName", Shape::Text),
                    (
                        "ports",
                        Shape::Items(
                            &[("port", Shape::Number), ("protocol", Shape::Text)],
                            &[NAME, ("nodePort", Shape::Number), ("appProtocol", Shape::Text)],
                        ),
                    ),
                    ("selector", Shape::Selector),
                    ("type", Shape::Text),
                ]),
            ),
        ],
    },
    Kind {
        group: "",
        plural: "serviceaccounts",
        kind: "ServiceAccount",
        fields: &[METADATA, ("secrets", Shape::Items(&[NAME], &[]))],
    },
    Kind {
        group: "",
        plural: "persistentvolumeclaims",
        kind: "PersistentVolumeClaim",
        fields: &[
            METADATA,
            (
                "spec",
                Shape::Struct(&[
                    ("accessModes", Shape::Words),
                    ("selector", Shape::Whole(&[("matchLabels", Shape::Labels)])),
                    ("storageClassName", Shape::Text),
                ]),
            ),
        ],
    },
    Kind { group: "", plural: "configmaps", kind: "ConfigMap", fields: &[METADATA, ("data", Shape::Labels)] },
];

/// Whether something happens that does so `percent` times of a hundred.
fn chance(random: &mut Random, percent: usize) -> bool {
    random.below(100) < percent
}

fn word(random: &mut Random) -> &'static str {
    random.pick::<&str>(&["1", "2", "3", "4", "5"])
}

fn words(random: &mut Random) -> Vec<Value> {
    let mut all = Vec::new();
    for word in ["1", "2", "3", "4", "5"] {
        if chance(random, 40) {
            all.insert(random.below(all.len() + 1), word.into());
        }
    }
    all
}

/// Different values that a key of an item may have, in any order.
fn places(random: &mut Random, shape: &Shape) -> Vec<Value> {
    match shape {
        Shape::Number => words(random).iter().filter_map(|w| Some(w.as_str()?.parse::<i64>().ok()?.into())).collect(),
        _ => words(random),
    }
}

/// A value, never an empty one where one with something in it can be had.
fn value(random: &mut Random, shape: &Shape) -> Value {
    let never_empty = |mut words: Vec<Value>| {
        if words.is_empty() {
            words.push("1".into());
        }
        words
    };
    match shape {
        Shape::Text => word(random).into(),
        Shape::Number => (random.below(5) + 1).into(),
        Shape::Words | Shape::Values => never_empty(words(random)).into(),
        Shape::Labels | Shape::Selector => {
            let keys = never_empty(words(random));
            keys.iter()
                .map(|k| (k.as_str().unwrap_or_default().to_owned(), word(random).into()))
                .collect::<Map<_, _>>()
                .into()
        }
        Shape::Items(keys, fields) => {
            let mut places = places(random, &keys[0].1);
            if places.is_empty() {
                places.push(value(random, &keys[0].1));
            }
            places.into_iter().map(|place| item(random, keys, &place, fields)).collect()
        }
        Shape::Struct(fields) | Shape::Whole(fields) => {
            let mut map = members(random, fields, 35);
            if map.is_empty() {
                let (name, shape) = random.pick(fields);
                map.insert((*name).into(), value(random, shape));
            }
            map.into()
        }
    }
}

fn members(random: &mut Random, fields: &[(&str, Shape)], percent: usize) -> Map<String, Value> {
    let mut map = Map::new();
    for (name, shape) in fields {
        if chance(random, percent) {
            map.insert((*name).into(), value(random, shape));
        }
    }
    map
}

fn item(random: &mut Random, keys: &[(&str, Shape)], place: &Value, fields: &[(&str, Shape)]) -> Value {
    let mut map = members(random, fields, 35);
    map.insert(keys[0].0.into(), place.clone());
    for (name, _) in &keys[1..] {
        map.insert((*name).into(), if chance(random, 50) { "TCP" } else { "UDP" }.into());
    }
    map.into()
}

/// The cases of the appendix of RFC 7386.
#[test]
fn merge_patches_do_what_the_rfc_lists() {
    for (target, patch, result) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"a": "foo"}), json!("bar"), json!("bar")),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        let mut value = target.clone();
        crate::patch::apply_merge(&mut value, &patch);
        assert_eq!(value, result, "{target} {patch}");
    }
}
