//! Every message we declare is on the wire what another implementation takes it for.
//!
//! The peer is the `k8s-pb` crate, which prost generated from the `.proto` files of Kubernetes 1.35. For each message
//! objects filled by our schema are encoded by us, decoded and encoded again by the peer, and compared three ways: the
//! peer shows each value under the same name; its bytes decode to the same object; and where it knows every field, its
//! bytes are ours. What 1.36 added has no peer; `declared_fields` compares it with the published list of fields.

#[path = "peer/debug.rs"]
mod debug;
mod random;
#[path = "peer/table.rs"]
mod table;

use std::collections::{BTreeMap, BTreeSet};

use debug::Shown;
use proto::schema::{StructId, Type, TypeSet};
use proto::{json, protobuf};
use random::{Fill, Random, object};
use serde_json::Value;

/// A message of the peer.
pub struct Peer {
    /// Rust path of its module.
    package: &'static str,
    name: &'static str,
    /// Decodes, encodes again, and shows what was decoded.
    exchange: fn(&[u8]) -> Result<Exchanged, prost::DecodeError>,
}

/// The bytes that the peer wrote again, and the message as it shows it.
type Exchanged = (Vec<u8>, String);

/// Packages of which the peer has nothing.
const WITHOUT_PEER: &[&str] =
    &["k8s.io.api.scheduling.v1alpha2", "k8s.io.apiserver.pkg.apis.audit.v1", "k8s.io.kubelet.config.v1beta1"];

/// Messages that JSON writes as something else than an object; each shows as a field of others.
const WITHIN_OTHERS: &[&str] = &[
    "ExtraValue",
    "JSON",
    "JSONSchemaPropsOrArray",
    "JSONSchemaPropsOrBool",
    "JSONSchemaPropsOrStringArray",
    "Quantity",
    "Duration",
    "FieldsV1",
    "MicroTime",
    "Time",
    "Verbs",
    "RawExtension",
    "IntOrString",
    // The envelope has a codec and a test of its own.
    "Unknown",
];

/// Messages of 1.36 in packages that 1.35 has.
const NEWER_MESSAGES: &[&str] = &[
    "k8s.io.api.admissionregistration.v1.ApplyConfiguration",
    "k8s.io.api.admissionregistration.v1.JSONPatch",
    "k8s.io.api.admissionregistration.v1.MutatingAdmissionPolicy",
    "k8s.io.api.admissionregistration.v1.MutatingAdmissionPolicyBinding",
    "k8s.io.api.admissionregistration.v1.MutatingAdmissionPolicyBindingList",
    "k8s.io.api.admissionregistration.v1.MutatingAdmissionPolicyBindingSpec",
    "k8s.io.api.admissionregistration.v1.MutatingAdmissionPolicyList",
    "k8s.io.api.admissionregistration.v1.MutatingAdmissionPolicySpec",
    "k8s.io.api.admissionregistration.v1.Mutation",
    "k8s.io.api.core.v1.ImageVolumeStatus",
    "k8s.io.api.core.v1.NodeAllocatableResourceClaimStatus",
    "k8s.io.api.core.v1.PodSchedulingGroup",
    "k8s.io.api.core.v1.VolumeStatus",
    "k8s.io.api.resource.v1.NodeAllocatableResourceMapping",
    "k8s.io.api.resource.v1alpha3.PoolStatus",
    "k8s.io.api.resource.v1alpha3.ResourcePoolStatusRequest",
    "k8s.io.api.resource.v1alpha3.ResourcePoolStatusRequestList",
    "k8s.io.api.resource.v1alpha3.ResourcePoolStatusRequestSpec",
    "k8s.io.api.resource.v1alpha3.ResourcePoolStatusRequestStatus",
    "k8s.io.api.resource.v1beta1.NodeAllocatableResourceMapping",
    "k8s.io.api.resource.v1beta2.DeviceTaintRule",
    "k8s.io.api.resource.v1beta2.DeviceTaintRuleList",
    "k8s.io.api.resource.v1beta2.DeviceTaintRuleSpec",
    "k8s.io.api.resource.v1beta2.DeviceTaintRuleStatus",
    "k8s.io.api.resource.v1beta2.DeviceTaintSelector",
    "k8s.io.api.resource.v1beta2.NodeAllocatableResourceMapping",
    "k8s.io.apimachinery.pkg.apis.meta.v1.ShardInfo",
];

/// Fields of 1.35 that 1.36 took out again (they were alpha).
const REMOVED_FIELDS: &[&str] = &["k8s.io.api.core.v1.PodSpec.workloadref"];

/// Fields of 1.36 in messages that 1.35 has.
const NEWER_FIELDS: &[&str] = &[
    "k8s.io.api.certificates.v1beta1.PodCertificateRequestSpec.stubPKCS10Request",
    "k8s.io.api.core.v1.PodSpec.schedulingGroup",
    "k8s.io.api.core.v1.PodStatus.nodeAllocatableResourceClaimStatuses",
    "k8s.io.api.core.v1.ResourceHealth.message",
    "k8s.io.api.core.v1.VolumeMountStatus.volumeStatus",
    "k8s.io.api.resource.v1.Device.nodeAllocatableResourceMappings",
    "k8s.io.api.resource.v1.DeviceAttribute.bools",
    "k8s.io.api.resource.v1.DeviceAttribute.ints",
    "k8s.io.api.resource.v1.DeviceAttribute.strings",
    "k8s.io.api.resource.v1.DeviceAttribute.versions",
    "k8s.io.api.resource.v1beta1.BasicDevice.nodeAllocatableResourceMappings",
    "k8s.io.api.resource.v1beta1.DeviceAttribute.bools",
    "k8s.io.api.resource.v1beta1.DeviceAttribute.ints",
    "k8s.io.api.resource.v1beta1.DeviceAttribute.strings",
    "k8s.io.api.resource.v1beta1.DeviceAttribute.versions",
    "k8s.io.api.resource.v1beta2.Device.nodeAllocatableResourceMappings",
    "k8s.io.api.resource.v1beta2.DeviceAttribute.bools",
    "k8s.io.api.resource.v1beta2.DeviceAttribute.ints",
    "k8s.io.api.resource.v1beta2.DeviceAttribute.strings",
    "k8s.io.api.resource.v1beta2.DeviceAttribute.versions",
    "k8s.io.api.storage.v1.CSIDriverSpec.preventPodSchedulingIfMissing",
    "k8s.io.api.storage.v1beta1.CSIDriverSpec.preventPodSchedulingIfMissing",
    "k8s.io.apimachinery.pkg.apis.meta.v1.ListMeta.shardInfo",
    "k8s.io.apimachinery.pkg.apis.meta.v1.ListOptions.shardSelector",
];

/// Names differ in case and underscores only, where JSON's are not others altogether (`$ref`, `x-kubernetes-...`).
fn plain(name: &str) -> String {
    let name = name.strip_prefix("r#").unwrap_or(name);
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

fn structs_by_name(set: &TypeSet) -> BTreeMap<String, StructId> {
    let count = StructId::try_from(set.structs.len()).expect("the table is small");
    (0..count).map(|id| (set.get(id).name.to_ascii_lowercase(), id)).collect()
}

fn full_name(peer: &Peer) -> String {
    format!("k8s.io.{}.{}", peer.package.replace(' ', "").replace("::", "."), peer.name).to_ascii_lowercase()
}

/// Fields as the peer shows them; messages that JSON inlines are spread out.
fn spread(set: &TypeSet, id: StructId, shown: Shown, out: &mut BTreeMap<String, Shown>) {
    let Shown::Struct(fields) = shown else { return };
    for (name, value) in fields {
        let ours = set.get(id).props.iter().any(|p| plain(&p.name) == plain(&name));
        match value {
            value @ Shown::Struct(_) if !ours => spread(set, id, value, out),
            value => drop(out.insert(plain(&name), value)),
        }
    }
}

/// What is wrong between our tree and what the peer shows of our bytes.
fn compare(set: &TypeSet, id: StructId, value: &Value, shown: &BTreeMap<String, Shown>) -> Vec<String> {
    let mut wrong = Vec::new();
    let shape = set.get(id);
    for prop in &shape.props {
        let (Some(theirs), Some(ours)) = (shown.get(&plain(&prop.name)), value.get(&*prop.name)) else { continue };
        let same = match (set.ty(prop.ty), theirs) {
            (Type::String, Shown::Text(text)) => ours == text.as_str(),
            (Type::Bool | Type::Int32 | Type::Int64, Shown::Word(word)) => format!("{ours}") == *word,
            (Type::Double, Shown::Word(word)) => ours.as_f64() == word.parse().ok(),
            (Type::String | Type::Bool | Type::Int32 | Type::Int64 | Type::Double, _) => false,
            (_, theirs) => *theirs != Shown::Nothing,
        };
        if !same {
            wrong.push(format!("{}.{}: {ours} is {theirs:?} to the peer", shape.name, prop.name));
        }
    }
    wrong
}

/// An empty object as the peer shows it: the names of its fields, and for inlined messages theirs.
fn fields_of(set: &TypeSet, id: StructId, peer: &Peer) -> BTreeMap<String, Shown> {
    let full = object(set, id, Fill::All, &mut Random::new(1));
    let mut bytes = Vec::new();
    protobuf::encode(set, id, &full, &mut bytes);
    let mut shown = BTreeMap::new();
    let (_, text) = (peer.exchange)(&bytes).unwrap_or_else(|e| panic!("{}: {e}", set.get(id).name));
    spread(set, id, debug::parse(&text), &mut shown);
    shown
}

#[test]
fn the_peer_has_the_same_fields_but_for_newer_ones() {
    let set = TypeSet::built_in();
    let ours = structs_by_name(set);
    let (mut newer, mut missing) = (Vec::new(), Vec::new());
    for peer in table::peers() {
        let id = ours[&full_name(&peer)];
        let shape = set.get(id);
        let theirs = fields_of(set, id, &peer);
        let typed = if shape.typed { 2 } else { 0 };
        let own: BTreeSet<String> = shape.props[typed..].iter().map(|p| plain(&p.name)).collect();
        let alone = shape.props[typed..].iter().filter(|p| !theirs.contains_key(&plain(&p.name)));
        newer.extend(alone.map(|p| format!("{}.{}", shape.name, p.name)));
        missing.extend(theirs.keys().filter(|name| !own.contains(*name)).map(|n| format!("{}.{n}", shape.name)));
    }
    newer.sort();
    missing.sort();
    assert_eq!(missing, REMOVED_FIELDS, "fields that we do not declare");
    assert_eq!(newer, NEWER_FIELDS, "fields that the peer does not have");
}

#[test]
fn the_peer_reads_every_message_as_we_mean_it() {
    let set = TypeSet::built_in();
    let ours = structs_by_name(set);
    let (mut wrong, mut same_bytes) = (Vec::new(), 0);
    let peers = table::peers();
    for peer in &peers {
        let id = ours[&full_name(peer)];
        for seed in 0..8 {
            let fill = if seed < 2 { Fill::All } else { Fill::Some };
            let mut value = object(set, id, fill, &mut Random::new(seed * 15_485_863 + u64::from(id) + 1));
            without_newer(set, id, &mut value);
            let mut bytes = Vec::new();
            protobuf::encode(set, id, &value, &mut bytes);
            let (again, text) = match (peer.exchange)(&bytes) {
                Ok(answer) => answer,
                Err(error) => {
                    wrong.push(format!("{}: {error}", set.get(id).name));
                    continue;
                }
            };
            let mut shown = BTreeMap::new();
            spread(set, id, debug::parse(&text), &mut shown);
            wrong.extend(compare(set, id, &value, &shown));
            if again == bytes {
                same_bytes += 1;
            } else {
                wrong.extend(difference(set, id, &bytes, &again));
            }
        }
    }
    println!("{same_bytes} of {} objects of {} messages have the same bytes", peers.len() * 8, peers.len());
    wrong.sort();
    wrong.dedup();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong[..wrong.len().min(40)].join("\n"));
}

/// Bytes may differ by a newer field that is written even when empty; the objects in them may not.
fn difference(set: &TypeSet, id: StructId, sent: &[u8], back: &[u8]) -> Option<String> {
    let text = |bytes| {
        let mut value = protobuf::decode(set, id, bytes).unwrap_or_else(|e| panic!("{}: {e}", set.get(id).name));
        without_newer(set, id, &mut value);
        let mut text = Vec::new();
        json::write(set, id, &value, &mut text);
        text
    };
    let (first, second) = (text(sent), text(back));
    let at = first.iter().zip(&second).position(|(a, b)| a != b);
    let at = at.or_else(|| (first.len() != second.len()).then_some(first.len().min(second.len())))?;
    let near = |b: &[u8]| String::from_utf8_lossy(&b[at.saturating_sub(80)..(at + 80).min(b.len())]).into_owned();
    Some(format!("{} comes back different\n  {}\n  {}", set.get(id).name, near(&first), near(&second)))
}

/// Takes out the fields that the peer does not know, at any depth.
fn without_newer(set: &TypeSet, id: StructId, value: &mut Value) {
    let Value::Object(map) = value else { return };
    let shape = set.get(id);
    map.retain(|name, _| !NEWER_FIELDS.contains(&format!("{}.{name}", shape.name).as_str()));
    for prop in &shape.props {
        if let Some(value) = map.get_mut(&*prop.name) {
            each_struct(set, prop.ty, value, &mut |id, value| without_newer(set, id, value));
        }
    }
}

fn each_struct(set: &TypeSet, ty: u32, value: &mut Value, visit: &mut dyn FnMut(StructId, &mut Value)) {
    match (set.ty(ty), value) {
        (Type::Struct(id) | Type::AtomicStruct(id), value) => visit(*id, value),
        (Type::List(list), Value::Array(items)) => {
            items.iter_mut().for_each(|v| each_struct(set, list.element, v, visit));
        }
        (Type::Map(map), Value::Object(items)) => {
            items.values_mut().for_each(|v| each_struct(set, map.value, v, visit));
        }
        _ => {}
    }
}

#[test]
fn every_message_has_a_peer_or_is_newer() {
    let set = TypeSet::built_in();
    let peers: BTreeSet<String> = table::peers().iter().map(full_name).collect();
    let alone: Vec<&str> = set
        .structs
        .iter()
        .map(|s| &*s.name)
        .filter(|name| !peers.contains(&name.to_ascii_lowercase()))
        .filter(|name| !WITHOUT_PEER.iter().any(|p| name.strip_prefix(p).is_some_and(|rest| rest.starts_with('.'))))
        .filter(|name| !WITHIN_OTHERS.contains(&name.rsplit('.').next().unwrap_or_default()))
        .collect();
    assert_eq!(alone, NEWER_MESSAGES);
}

#[test]
fn the_peer_opens_our_envelope() {
    use prost::Message as _;
    let mut bytes = Vec::new();
    protobuf::write_envelope("apps/v1", "Deployment", b"\x0a\x00", &mut bytes);
    let unknown = k8s_pb::apimachinery::pkg::runtime::Unknown::decode(&bytes[4..]).expect("a message");
    let meta = unknown.type_meta.expect("type meta");
    assert_eq!((meta.api_version.as_deref(), meta.kind.as_deref()), (Some("apps/v1"), Some("Deployment")));
    assert_eq!(unknown.raw.as_deref(), Some(&b"\x0a\x00"[..]));
    assert_eq!((unknown.content_type.as_deref(), unknown.content_encoding.as_deref()), (Some(""), Some("")));
    let mut theirs = b"k8s\0".to_vec();
    k8s_pb::apimachinery::pkg::runtime::Unknown {
        type_meta: Some(k8s_pb::apimachinery::pkg::runtime::TypeMeta {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
        }),
        raw: Some(vec![8, 1]),
        ..Default::default()
    }
    .encode(&mut theirs)
    .expect("a vector takes it");
    let opened = protobuf::read_envelope(&theirs).expect("an envelope");
    assert_eq!((opened.api_version, opened.kind, opened.raw), ("v1", "Pod", &[8, 1][..]));
}
